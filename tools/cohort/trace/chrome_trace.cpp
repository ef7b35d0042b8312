// SPDX-License-Identifier: BSD-3-Clause
#include "trace/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "trace/analysis.h"
#include "trace/chrome_document.h"

namespace cohort::trace {

namespace {

std::int64_t begin_of(const TraceEntry& entry) {
  return entry.started_ns != 0 ? entry.started_ns : entry.created_ns;
}

ChromeEvent event_of(const TraceEntry& entry, std::int64_t last, const std::string& group) {
  const auto begin = begin_of(entry);
  nlohmann::json arguments{{"group", group},
                           {"sequence", entry.sequence()},
                           {"call", describe(entry)},
                           {"backend", entry.backend},
                           {"state", to_string(entry.state)},
                           {"waited_us", static_cast<double>(begin - entry.created_ns) / 1000.0},
                           {"thread", entry.thread}};
  if (entry.is_p2p) arguments["peer"] = entry.peer;
  return {.name = entry.op,
          .category = entry.is_p2p ? "p2p" : "collective",
          .begin = begin,
          .end = std::max(begin, entry.completed_ns == 0 ? last : entry.completed_ns),
          .arguments = std::move(arguments)};
}

}  // namespace

std::string chrome_trace(const std::vector<TraceDump>& dumps) {
  auto first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  std::map<std::string, std::string> names;                                          // of groups, by id
  std::map<int, std::string> hosts;                                                  // of ranks
  std::map<std::pair<int, std::string>, std::vector<const TraceEntry*>> by_track{};  // rank and group
  for (const auto& dump : dumps) {
    for (const auto& [id, group] : dump.groups) names.emplace(id, group.name);
    for (const auto& entry : dump.entries) {
      if (entry.created_ns <= 0) continue;
      first = std::min({first, entry.created_ns, begin_of(entry)});
      last = std::max({last, entry.created_ns, begin_of(entry), entry.completed_ns});
      hosts.emplace(entry.rank, dump.host);
      by_track[{entry.rank, entry.group}].push_back(&entry);
    }
  }
  std::vector<ChromeProcess> processes;
  processes.reserve(hosts.size());
  for (const auto& [rank, host] : hosts) {
    processes.push_back({rank, host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, host)});
  }
  std::vector<ChromeTrack> tracks;
  for (const auto& [key, entries] : by_track) {
    const auto& [rank, group] = key;
    const auto found = names.find(group);
    auto& track =
        tracks.emplace_back(ChromeTrack{.process = rank, .name = found == names.end() ? group : found->second});
    for (const auto* const entry : entries) track.events.push_back(event_of(*entry, last, track.name));
  }
  return chrome_document(processes, std::move(tracks), first);
}

}  // namespace cohort::trace
