// SPDX-License-Identifier: BSD-3-Clause
//
// How many recordings of a step are kept, and which of them goes.
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/tensor.h>

#include <cstdint>
#include <string>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

TEST(KeptRecordings, AreBoundedAndTheOneUsedLongestAgoGoes) {
  const auto weight = at::ones({3});
  int runs = 0;
  auto step = capture(
      [&](const at::Tensor& x) {
        ++runs;
        weight.mul_(0.5);
        return (x * weight).sum(0);
      },
      {.max_recordings = 2});
  const auto expected_weight = at::ones({3});
  Numbers numbers(1);
  // Some calls with an argument of so many rows; how often the step's code ran in them.
  const auto call = [&](std::int64_t rows) {
    const auto before = runs;
    for (int i = 0; i < 3; ++i) {
      const auto x = numbers({rows, 3});
      expected_weight.mul_(0.5);
      expect_same_bits(step(x), (x * expected_weight).sum(0), std::to_string(rows) + " rows: " + step.explain());
    }
    expect_same_bits(weight, expected_weight, "the weight after " + std::to_string(rows) + " rows");
    return runs - before;
  };
  EXPECT_EQ(call(2), 2);
  EXPECT_EQ(call(3), 2);
  EXPECT_EQ(step.recordings(), 2U);
  EXPECT_EQ(call(2), 0) << "so that 3 rows are longest ago";
  EXPECT_EQ(call(4), 2);
  EXPECT_EQ(step.recordings(), 2U) << step.explain();
  EXPECT_EQ(call(2), 0) << step.explain();
  EXPECT_EQ(call(3), 2) << step.explain();
  EXPECT_EQ(step.recordings(), 2U) << step.explain();
  EXPECT_EQ(call(4), 2) << step.explain();
  EXPECT_EQ(call(3), 0) << step.explain();
  EXPECT_EQ(step.recordings(), 2U) << step.explain();
}

/// What a rank has recorded again has the collectives that the others know.
TEST(KeptRecordings, AreBoundedOnEveryRank) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    int runs = 0;
    const auto body = [&](const at::Tensor& x) {
      const auto y = x.sin();
      group->all_reduce(y);
      return y.sum(0);
    };
    auto step = capture(
        [&](const at::Tensor& x) {
          ++runs;
          return body(x);
        },
        {.max_recordings = 2});
    Numbers numbers(group->rank());
    for (int cycle = 0; cycle < 3; ++cycle) {
      for (const std::int64_t rows : {2, 3, 4}) {
        const auto before = runs;
        for (int i = 0; i < 3; ++i) {
          const auto x = numbers({rows, 3});
          const auto result = step(x);
          expect_same_bits(result, body(x), std::to_string(rows) + " rows: " + step.explain());
        }
        EXPECT_EQ(runs - before, 2) << "each size has gone when it comes again: " << step.explain();
      }
      EXPECT_EQ(step.recordings(), 2U) << step.explain();
    }
  });
}

TEST(KeptRecordings, MayBeOneAlone) {
  int runs = 0;
  auto step = capture(
      [&](const at::Tensor& x) {
        ++runs;
        return x * 2;
      },
      {.max_recordings = 1});
  for (const std::int64_t rows : {2, 3, 2}) {
    const auto before = runs;
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(step(at::ones({rows})), at::full({rows}, 2.0)));
    EXPECT_EQ(runs - before, 2) << step.explain();
    EXPECT_EQ(step.recordings(), 1U);
  }
}

TEST(KeptRecordings, OfImpossibleNumbersAreRefused) {
  const auto body = [](const at::Tensor& x) { return x * 2; };
  EXPECT_ERROR(ValueError, capture(body, {.max_recordings = 0}), "max_recordings must be at least 1");
  EXPECT_ERROR(ValueError, capture(body, {.max_attempts = 1}), "max_attempts at least 2");
}

}  // namespace
}  // namespace cohort::test
