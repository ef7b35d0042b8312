// SPDX-License-Identifier: BSD-3-Clause
#include "trace/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "trace/analysis.h"

namespace cohort::trace {

namespace {

using nlohmann::json;

struct Span {
  const TraceEntry* entry;
  std::int64_t begin;
  std::int64_t end;
};

std::int64_t begin_of(const TraceEntry& entry) {
  return entry.started_ns != 0 ? entry.started_ns : entry.created_ns;
}

/// Viewers expect the events of a track not to overlap: each event goes to the first track that is free.
class Tracks {
 public:
  /// Returns the index of the event's track among the tracks of its group.
  std::size_t place(const Span& span) {
    for (std::size_t i = 0; i < busy_until_.size(); ++i) {
      if (busy_until_[i] <= span.begin) {
        busy_until_[i] = span.end;
        return i;
      }
    }
    busy_until_.push_back(span.end);
    return busy_until_.size() - 1;
  }
  std::size_t size() const { return busy_until_.size(); }

 private:
  std::vector<std::int64_t> busy_until_;
};

json metadata(const char* what, int pid, int tid, json arguments) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

json event_of(const Span& span, std::int64_t origin, int pid, int tid, const std::string& group) {
  const auto& entry = *span.entry;
  const auto micros = [](std::int64_t ns) { return static_cast<double>(ns) / 1000.0; };
  json arguments{{"group", group},
                 {"sequence", entry.sequence()},
                 {"call", describe(entry)},
                 {"backend", entry.backend},
                 {"state", to_string(entry.state)},
                 {"waited_us", micros(span.begin - entry.created_ns)},
                 {"thread", entry.thread}};
  if (entry.is_p2p) arguments["peer"] = entry.peer;
  return {{"ph", "X"},
          {"name", entry.op},
          {"cat", entry.is_p2p ? "p2p" : "collective"},
          {"ts", micros(span.begin - origin)},
          {"dur", micros(span.end - span.begin)},
          {"pid", pid},
          {"tid", tid},
          {"args", std::move(arguments)}};
}

}  // namespace

std::string chrome_trace(const std::vector<TraceDump>& dumps) {
  auto first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  std::map<std::string, std::string> names;                             // of groups, by id
  std::map<int, std::string> hosts;                                     // of ranks
  std::map<std::pair<int, std::string>, std::vector<Span>> by_track{};  // rank and group
  for (const auto& dump : dumps) {
    for (const auto& [id, group] : dump.groups) names.emplace(id, group.name);
    for (const auto& entry : dump.entries) {
      if (entry.created_ns <= 0) continue;
      first = std::min({first, entry.created_ns, begin_of(entry)});
      last = std::max({last, entry.created_ns, begin_of(entry), entry.completed_ns});
      hosts.emplace(entry.rank, dump.host);
      by_track[{entry.rank, entry.group}].push_back({&entry, begin_of(entry), entry.completed_ns});
    }
  }

  auto events = json::array();
  for (const auto& [rank, host] : hosts) {
    const auto name = host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, host);
    events.push_back(metadata("process_name", rank, 0, {{"name", name}}));
    events.push_back(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
  }
  std::map<int, int> used;  // track ids of a rank
  for (auto& [key, spans] : by_track) {
    const auto& [rank, group] = key;
    const auto found = names.find(group);
    const auto& name = found == names.end() ? group : found->second;
    for (auto& span : spans) {
      if (span.end == 0) span.end = last;
      span.end = std::max(span.end, span.begin);
    }
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    Tracks tracks;
    const int base = used[rank];
    for (const auto& span : spans) {
      const int tid = base + static_cast<int>(tracks.place(span)) + 1;
      events.push_back(event_of(span, first, rank, tid, name));
    }
    for (std::size_t i = 0; i < tracks.size(); ++i) {
      const auto label = i == 0 ? name : fmt::format("{} ({})", name, i + 1);
      events.push_back(metadata("thread_name", rank, base + static_cast<int>(i) + 1, {{"name", label}}));
    }
    used[rank] = base + static_cast<int>(tracks.size());
  }
  const json document{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace cohort::trace
