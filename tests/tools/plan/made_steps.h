// SPDX-License-Identifier: BSD-3-Clause
//
// Recorded steps for the tests, made by hand.
#pragma once

#include <cohort/torch/recorded_step.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cohort::test {

/// Adds nodes one after the other, each with the time it took in the only replay that was measured.
class MadeStep {
 public:
  explicit MadeStep(std::vector<GraphGroup> groups) { step_.graph.groups = std::move(groups); }

  MadeStep& compute(std::int64_t ns, std::string name = "aten::mm") { return add({.name = std::move(name)}, ns); }
  /// An asynchronous one makes a value for wait().
  MadeStep& collective(std::string name, std::size_t bytes, bool is_async, std::int64_t ns = 0, std::size_t group = 0) {
    const auto& on = step_.graph.groups.at(group);
    GraphNode node{.kind = GraphNode::Kind::collective, .name = std::move(name)};
    node.operands = {{.name = "dtype", .text = "f32"}, {.name = "op", .text = "sum"}};
    node.group = on.id;
    node.group_size = static_cast<int>(on.ranks.size());
    node.bytes = bytes;
    node.is_async = is_async;
    node.results = {step_.graph.values.size()};
    step_.graph.values.emplace_back();
    made_.push_back(node.results.front());
    return add(std::move(node), ns);
  }
  /// For the collective of this number.
  MadeStep& wait(std::size_t collective, std::int64_t ns = 0) {
    GraphNode node{.kind = GraphNode::Kind::wait, .name = "wait"};
    node.operands = {{.name = "in", .values = {made_.at(collective)}}};
    return add(std::move(node), ns);
  }

  RecordedStep done() const { return step_; }
  RecordedStep without_times() const { return {.graph = step_.graph, .timeline = {}}; }

 private:
  MadeStep& add(GraphNode node, std::int64_t ns) {
    step_.graph.nodes.push_back(std::move(node));
    if (step_.timeline.replays.empty()) step_.timeline.replays.emplace_back();
    auto& replay = step_.timeline.replays.front();
    replay.nodes.push_back({.begin = replay.end, .end = replay.end + ns});
    replay.end += ns;
    return *this;
  }

  RecordedStep step_;
  std::vector<std::size_t> made_;
};

inline GraphGroup made_group(std::string id, int first, int stride, int size, std::string label = {}) {
  GraphGroup group{.id = std::move(id), .label = std::move(label), .ranks = {}};
  for (int i = 0; i < size; ++i) group.ranks.push_back(first + i * stride);
  return group;
}

/// Forward 1 ms, then three gradients of 1 MB each, ready 1 ms apart, and an optimizer of 0.5 ms after all are reduced.
inline MadeStep data_parallel_step(int ranks = 4) {
  MadeStep step({made_group("7f", 0, 1, ranks, "mesh_dp")});
  step.compute(1'000'000);
  for (int i = 0; i < 3; ++i) step.compute(1'000'000).collective("all_reduce", 1'000'000, true);
  for (std::size_t i = 0; i < 3; ++i) step.wait(i);
  return step.compute(500'000);
}

}  // namespace cohort::test
