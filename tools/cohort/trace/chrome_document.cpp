// SPDX-License-Identifier: BSD-3-Clause
#include "trace/chrome_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace cohort::trace {

namespace {

using nlohmann::json;

/// Viewers expect the events of a track not to overlap: each event goes to the first track that is free.
class Tracks {
 public:
  /// Returns the index of the event's track among those of its name.
  std::size_t place(const ChromeEvent& event) {
    for (std::size_t i = 0; i < busy_until_.size(); ++i) {
      if (busy_until_[i] <= event.begin) {
        busy_until_[i] = event.end;
        return i;
      }
    }
    busy_until_.push_back(event.end);
    return busy_until_.size() - 1;
  }
  std::size_t size() const { return busy_until_.size(); }

 private:
  std::vector<std::int64_t> busy_until_;
};

json metadata(const char* what, int pid, int tid, json arguments) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

}  // namespace

std::string chrome_document(const std::vector<ChromeProcess>& processes, std::vector<ChromeTrack> tracks,
                            std::int64_t origin) {
  const auto micros = [](std::int64_t ns) { return static_cast<double>(ns) / 1000.0; };
  auto events = json::array();
  for (const auto& each : processes) {
    events.push_back(metadata("process_name", each.number, 0, {{"name", each.name}}));
    events.push_back(metadata("process_sort_index", each.number, 0, {{"sort_index", each.number}}));
  }
  std::map<int, int> used;  // track ids of a process
  for (auto& track : tracks) {
    std::stable_sort(track.events.begin(), track.events.end(),
                     [](const ChromeEvent& a, const ChromeEvent& b) { return a.begin < b.begin; });
    Tracks places;
    const int base = used[track.process];
    for (auto& event : track.events) {
      const int tid = base + static_cast<int>(places.place(event)) + 1;
      events.push_back({{"ph", "X"},
                        {"name", std::move(event.name)},
                        {"cat", std::move(event.category)},
                        {"ts", micros(event.begin - origin)},
                        {"dur", micros(event.end - event.begin)},
                        {"pid", track.process},
                        {"tid", tid},
                        {"args", std::move(event.arguments)}});
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto label = i == 0 ? track.name : fmt::format("{} ({})", track.name, i + 1);
      events.push_back(metadata("thread_name", track.process, base + static_cast<int>(i) + 1, {{"name", label}}));
    }
    used[track.process] = base + static_cast<int>(places.size());
  }
  const json document{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace cohort::trace
