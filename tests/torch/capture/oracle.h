// SPDX-License-Identifier: BSD-3-Clause
//
// What the oracles of capture share: the same training twice, as it is and captured, compared bit by bit.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/torch/capture.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/bits.h"

namespace cohort::test {

inline constexpr int steps = 50;

/// The loss of each step, and what the last step left.
struct Trained {
  std::vector<at::Tensor> losses{};
  std::vector<at::Tensor> left{};
  int runs = 0;  ///< how often the step's code ran
};

inline void expect_same_bits(const at::Tensor& captured, const at::Tensor& eager, const std::string& what) {
  ASSERT_EQ(captured.defined(), eager.defined()) << what;
  if (!eager.defined()) return;
  ASSERT_EQ(captured.sizes(), eager.sizes()) << what;
  ASSERT_EQ(captured.scalar_type(), eager.scalar_type()) << what;
  EXPECT_TRUE(have_same_bits(captured, eager))
      << what << ": the bits differ, the values by up to " << (captured - eager).abs().max().item<double>();
}

inline void expect_same_training(const Trained& captured, const Trained& eager) {
  ASSERT_EQ(captured.losses.size(), eager.losses.size());
  for (std::size_t i = 0; i < eager.losses.size(); ++i) {
    expect_same_bits(captured.losses[i], eager.losses[i], "loss of step " + std::to_string(i));
  }
  ASSERT_EQ(captured.left.size(), eager.left.size());
  for (std::size_t i = 0; i < eager.left.size(); ++i) {
    expect_same_bits(captured.left[i], eager.left[i], "tensor " + std::to_string(i));
  }
  EXPECT_EQ(eager.runs, static_cast<int>(eager.losses.size()));
}

/// Numbers of the caller's own: ranks that are threads share libtorch's generator.
class Numbers {
 public:
  explicit Numbers(int seed) : generator_(at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed))) {}
  at::Tensor operator()(at::IntArrayRef sizes) { return at::randn(sizes, generator_); }
  void fill(const std::vector<at::Tensor>& parameters) {
    const at::NoGradGuard no_grad;
    for (const auto& each : parameters) each.copy_((*this)(each.sizes()) * 0.3);
  }

 private:
  at::Generator generator_;
};

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& each : tensors) copies.push_back(each.defined() ? each.detach().clone() : each);
  return copies;
}

/// Parameters, their gradients and buffers of a module.
template <class Module>
std::vector<at::Tensor> left_in(const Module& module) {
  auto all = module.parameters();
  const auto count = all.size();
  for (std::size_t i = 0; i < count; ++i) all.push_back(all[i].grad());
  for (const auto& each : module.buffers()) all.push_back(each);
  return copies_of(all);
}

/// Calls the step three times, which records and replays it, and expects this result each time.
template <class Step, class... Arguments>
void expect_result(Step& step, const at::Tensor& expected, Arguments&... arguments) {
  for (int i = 0; i < 3; ++i) expect_same_bits(step(arguments...), expected, "call " + std::to_string(i));
}

/// How many nodes of this name (or kind) the graph has.
inline std::size_t count_nodes(const Graph& graph, std::string_view name) {
  return static_cast<std::size_t>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const GraphNode& each) { return each.name == name; }));
}
inline std::size_t count_nodes(const Graph& graph, GraphNode::Kind kind) {
  return static_cast<std::size_t>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const GraphNode& each) { return each.kind == kind; }));
}

}  // namespace cohort::test
