// SPDX-License-Identifier: BSD-3-Clause
//
// When each node of a captured step (graph.h) began and ended in replays that were measured.
//
//   auto captured = cohort::capture([](torch::Tensor x) { return x * 2; });
//   for (int i = 0; i < 2; ++i) captured(x);                        // recorded twice, and alike
//   captured.measure(5);                                            // the next five replays note their times
//   for (int i = 0; i < 5; ++i) captured(x);
//   const cohort::ReplayTimes& replay = cohort::typical_replay(captured.timeline());
//   const auto nodes = cohort::all_nodes(captured.graph());
//   for (std::size_t i = 0; i < nodes.size(); ++i) {
//     std::cout << nodes[i]->name << ": " << replay.nodes[i].end - replay.nodes[i].begin << " ns\n";
//   }
//
// The times are those of the thread that replays. An asynchronous collective ends there as soon as it is issued, and
// runs beside the nodes that follow; the node that waits for it lasts as long as the thread waited. If the step is on a
// device, a measured replay waits for the device after each node, so that a node's time is that of its kernels.
//
// `cohort trace FILE` shows the timeline of a saved step (recorded_step.h) as a table, and writes it for Perfetto.
#pragma once

#include <cohort/export.h>
#include <cohort/torch/graph.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// In nanoseconds since the replay began.
struct NodeTime {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// When an asynchronous collective was complete. -1: not known, as for functional collectives and on devices.
  std::int64_t completed = -1;
  friend bool operator==(const NodeTime&, const NodeTime&) = default;
};

struct ReplayTimes {
  std::vector<NodeTime> nodes{};  ///< of all_nodes(), in this order: none begins before the one before has ended
  std::int64_t end = 0;           ///< when the replay ended
  friend bool operator==(const ReplayTimes&, const ReplayTimes&) = default;
};

struct GraphTimeline {
  std::vector<ReplayTimes> replays{};  ///< empty: nothing was measured
  friend bool operator==(const GraphTimeline&, const GraphTimeline&) = default;
};

/// The replay whose duration is the median. Throws a ValueError if nothing was measured.
COHORT_API const ReplayTimes& typical_replay(const GraphTimeline& timeline);

/// For each node the median of how long it lasted, in nanoseconds: a single replay is disturbed by whatever else the
/// machine does. Empty if nothing was measured.
COHORT_API std::vector<std::int64_t> typical_durations(const GraphTimeline& timeline);

/// As text that read_timeline() reads again. It throws a ValueError that names the line if the text is no timeline of a
/// graph with that many nodes. The text may come from anywhere.
COHORT_API std::string serialize(const GraphTimeline& timeline);
COHORT_API GraphTimeline read_timeline(std::string_view text, std::size_t nodes);

}  // namespace cohort
