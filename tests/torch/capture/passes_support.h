// SPDX-License-Identifier: BSD-3-Clause
//
// Steps beside themselves: eager, and captured with and without passes.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <cohort/torch/capture.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "torch/bits.h"
#include "torch/torch_ranks.h"

namespace cohort::test {

/// Once for each number of ranks.
inline void with_ranks(const GroupBody& body) {
  for (const int size : {2, 3}) with_torch_threads(size, body);
}

using Tensors = std::vector<at::Tensor>;
using Step = std::function<Tensors(const at::Tensor&)>;
/// A step with state of its own, the same each time.
using MakeStep = std::function<Step()>;

inline constexpr PassOptions no_passes{.remove_dead = false, .merge_common = false, .overlap = false};
inline constexpr PassOptions all_passes{.fuse_collectives = true};

struct Captured {
  std::vector<Tensors> results;  ///< of each step
  Graph graph;
  std::string explained;
};

inline constexpr int steps_of_a_run = 6;

inline at::Tensor input_of(int step, const std::vector<std::int64_t>& sizes, int rank) {
  return at::randn(sizes, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + rank)));
}

/// Copies, because a step may return what it writes later.
inline Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const auto& each : tensors) copies.push_back(each.defined() ? each.clone() : each);
  return copies;
}

inline std::vector<Tensors> run_eagerly(const MakeStep& make, const std::vector<std::int64_t>& sizes, int rank) {
  const auto step = make();
  std::vector<Tensors> results;
  for (int i = 0; i < steps_of_a_run; ++i) results.push_back(copies_of(step(input_of(i, sizes, rank))));
  return results;
}

inline Captured run_captured(const MakeStep& make, const PassOptions& passes, const std::vector<std::int64_t>& sizes,
                             int rank) {
  CaptureOptions options;
  options.passes = passes;
  auto step = capture(make(), options);
  Captured captured;
  for (int i = 0; i < steps_of_a_run; ++i) captured.results.push_back(copies_of(step(input_of(i, sizes, rank))));
  captured.graph = step.graph();
  captured.explained = step.explain();
  return captured;
}

inline void expect_same_bits(const std::vector<Tensors>& found, const std::vector<Tensors>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size());
    for (std::size_t k = 0; k < expected[i].size(); ++k) {
      EXPECT_TRUE(have_same_bits(found[i][k], expected[i][k])) << "result " << k << " of step " << i;
    }
  }
}

/// Runs the step in all three ways; they must agree to the bit.
struct Compared {
  Graph recorded;   ///< without passes
  Graph optimized;  ///< with them
  std::string explained;
};
inline Compared compare_runs(const MakeStep& make, const PassOptions& passes,
                             const std::vector<std::int64_t>& sizes = {4, 3}, int rank = 0) {
  const auto eager = run_eagerly(make, sizes, rank);
  const auto plain = run_captured(make, no_passes, sizes, rank);
  const auto optimized = run_captured(make, passes, sizes, rank);
  expect_same_bits(plain.results, eager);
  expect_same_bits(optimized.results, eager);
  return {.recorded = plain.graph, .optimized = optimized.graph, .explained = optimized.explained};
}

/// By name, whichever overload it is.
inline bool is_called(const GraphNode& node, std::string_view name) {
  return node.name.starts_with(name) && (node.name.size() == name.size() || node.name[name.size()] == '.');
}

inline std::size_t count_of(const Graph& graph, std::string_view name) {
  return static_cast<std::size_t>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                                [&](const GraphNode& each) { return is_called(each, name); }));
}

/// Of the node that has this name as the first, second, ... one. A failure if there is none.
inline std::size_t place_of(const Graph& graph, std::string_view name, std::size_t which = 0) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (is_called(graph.nodes[i], name) && which-- == 0) return i;
  }
  ADD_FAILURE() << "no node " << name << " in\n" << to_string(graph);
  return graph.nodes.size();
}

/// What must keep its order.
inline std::vector<std::string> collectives_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& each : graph.nodes) {
    if (each.kind == GraphNode::Kind::collective || each.kind == GraphNode::Kind::host) {
      names.push_back(each.name + " " + each.group + " " + std::to_string(each.bytes));
    }
  }
  return names;
}

}  // namespace cohort::test
