// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/source_lines.h"

#include <cohort/torch/capture.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

namespace cohort::test {
namespace {

using ::testing::IsEmpty;

TEST(SourceLines, AreThoseOfTheUsersCalls) {
  if (!recording::can_find_source_lines()) GTEST_SKIP() << "built without libbacktrace";
  const auto weight = torch::ones({2}, torch::requires_grad());
  int forward_line = 0;
  int backward_line = 0;
  auto step = capture(
      [&](const at::Tensor& x) {
        // clang-format off
        auto loss = (x * weight).exp().sum(); forward_line = __LINE__;
        auto gradients = torch::autograd::grad({loss}, {weight}); backward_line = __LINE__;
        // clang-format on
        return gradients.front();
      },
      {.source_lines = true});
  step(torch::ones({2}));
  const auto line_of = [&](const char* name, bool is_last) {
    std::string line;
    for (const auto& node : step.graph().nodes) {
      if (node.name == name && (line.empty() || is_last)) line = node.source;
    }
    return line;
  };
  const auto name_of = [](int line) { return "source_lines_test.cpp:" + std::to_string(line); };
  EXPECT_EQ(line_of("aten::exp", false), name_of(forward_line)) << step.graph();
  EXPECT_EQ(line_of("aten::mul.Tensor", false), name_of(forward_line)) << step.graph();
  EXPECT_EQ(line_of("aten::mul.Tensor", true), name_of(backward_line)) << step.graph();
  EXPECT_THAT(to_string(step.graph()), ::testing::HasSubstr("  # " + name_of(forward_line) + "\n"));
}

TEST(SourceLines, AreNotLookedForUnlessWanted) {
  auto step = capture([&](const at::Tensor& x) { return x * 2; });
  step(torch::ones({2}));
  for (const auto& node : step.graph().nodes) EXPECT_THAT(node.source, IsEmpty());
}

}  // namespace
}  // namespace cohort::test
