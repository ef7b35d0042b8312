// SPDX-License-Identifier: BSD-3-Clause
//
// Whether all ranks of a group issue the same collectives in the same order. A replay does not look at what peers do
// until a collective meets another one, perhaps steps later; a recording can be compared as a whole.
//
// The exchange is a collective itself, so all ranks must come to it at the same call of the step. They do: a sequence
// of collectives that is new on one rank is new on its peers, whose collectives met it in this very call. A rank that
// records again because of a guard that only it has (a smaller batch) finds the sequence known, and exchanges nothing.
#pragma once

#include <cohort/process_group.h>
#include <cohort/torch/graph.h>

#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace cohort::recording {

class RankComparison {
 public:
  /// For each group, in the order of their ids: exchanges its collectives in this graph, unless this sequence of them
  /// has been compared before. Throws a CaptureError that names the first difference, on all ranks of the group.
  void compare(std::span<const ProcessGroupPtr> groups, const Graph& graph);
  /// Likewise, but always exchanges what is left of sequences that were compared: whether a pass has changed them may
  /// differ between ranks.
  void compare_now(std::span<const ProcessGroupPtr> groups, const Graph& graph) const;

  struct Finding {
    std::string group;
    int rank;
    std::string text;
  };
  /// Tells the ranks of the groups that have collectives in this graph what this rank has found; empty: nothing.
  /// Returns what the first of the others has found, if any has. Always exchanges, so that all ranks learn of it at the
  /// same call: those of its groups, and those to which their groups lead in the order of the ids or against it, as in
  /// meshes.
  static std::optional<Finding> first_finding(std::span<const ProcessGroupPtr> groups, const Graph& graph,
                                              std::string mine);

 private:
  std::set<std::pair<std::string, std::string>> known_;  // a group's id, and its collectives
};

}  // namespace cohort::recording
