// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/compare_ranks.h"

#include <cohort/torch/capture_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

namespace cohort::recording {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  return lines;
}

CaptureError difference(const ProcessGroup& group, const std::string& first, const std::string& other, int rank) {
  const auto a = lines_of(first);
  const auto b = lines_of(other);
  const auto common = std::min(a.size(), b.size());
  std::size_t i = 0;
  while (i < common && a[i] == b[i]) ++i;
  const auto at = [i](const std::vector<std::string>& lines) { return i < lines.size() ? lines[i] : "none"; };
  return {CaptureRefusal::different_ranks,
          fmt::format("collective {} of the step on group \"{}\"", i, group.id()),
          fmt::format("rank 0 issues {} there, and rank {} {}", at(a), rank, at(b)),
          {"The ranks of a group must issue the same collectives in the same order.",
           "Look for code in the step that depends on the rank or on a rank's data."}};
}

std::vector<ProcessGroupPtr> by_id(std::span<const ProcessGroupPtr> groups) {
  std::vector<ProcessGroupPtr> sorted(groups.begin(), groups.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  return sorted;
}

std::string sequence_of(const Graph& graph, const ProcessGroup& group) {
  return fmt::format("{}", fmt::join(collectives_of(graph, group.id()), "\n"));
}

void exchange_sequences(ProcessGroup& group, const std::string& mine) {
  const auto all = group.all_gather_bytes(mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& each) { return each != all[0]; });
  if (other != all.end()) throw difference(group, all[0], *other, static_cast<int>(other - all.begin()));
}

}  // namespace

void RankComparison::compare(std::span<const ProcessGroupPtr> groups, const Graph& graph) {
  for (const auto& group : by_id(groups)) {
    const auto mine = sequence_of(graph, *group);
    // Messages concern their two ranks alone; the others may not have captured anything.
    if (mine.empty() || known_.contains({group->id(), mine})) continue;
    exchange_sequences(*group, mine);
    known_.emplace(group->id(), mine);
  }
}

void RankComparison::compare_now(std::span<const ProcessGroupPtr> groups, const Graph& graph) const {
  for (const auto& group : by_id(groups)) {
    const auto is_known = known_.lower_bound({group->id(), {}});
    if (is_known == known_.end() || is_known->first != group->id()) continue;  // has messages alone
    exchange_sequences(*group, sequence_of(graph, *group));
  }
}

std::optional<RankComparison::Finding> RankComparison::first_finding(std::span<const ProcessGroupPtr> groups,
                                                                     const Graph& graph, std::string mine) {
  std::vector<ProcessGroupPtr> there_and_back;
  for (const auto& group : by_id(groups)) {
    if (!sequence_of(graph, *group).empty()) there_and_back.push_back(group);  // others have messages alone
  }
  // Every rank's sequence is part of one over all groups, so that no ranks wait for each other in a circle.
  const auto there = there_and_back.size();
  for (auto i = there; i-- > 0;) there_and_back.push_back(there_and_back[i]);
  std::optional<Finding> found;
  for (const auto& group : there_and_back) {
    const auto all = group->all_gather_bytes(mine);
    const auto first = std::find_if(all.begin(), all.end(), [](const std::string& each) { return !each.empty(); });
    if (first == all.end() || !mine.empty()) continue;
    found = Finding{.group = group->id(), .rank = static_cast<int>(first - all.begin()), .text = *first};
    mine = *first;  // for the ranks of the next groups
  }
  return found;
}

}  // namespace cohort::recording
