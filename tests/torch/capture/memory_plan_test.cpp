// SPDX-License-Identifier: BSD-3-Clause
//
// How long memory lives in a replay, and where it would lie in an arena.
#include "torch/capture/passes/memory_plan.h"

#include <gmock/gmock.h>

#include <random>

#include "torch/capture/passes_support.h"

namespace cohort::test {
namespace {

using recording::Lifetime;
using recording::plan_memory;
using testing::ElementsAre;

TEST(MemoryPlan, ReusesWhatIsNotAliveAtTheSameTime) {
  const std::vector<Lifetime> lifetimes{
      {.storage = 0, .bytes = 128, .first = 0, .last = 1},
      {.storage = 1, .bytes = 256, .first = 1, .last = 2},
      {.storage = 2, .bytes = 128, .first = 2, .last = 3},  // in the place of the first
  };
  const auto plan = plan_memory(lifetimes, 4);
  EXPECT_EQ(plan.made, 512U);
  EXPECT_EQ(plan.peak, 384U);
  EXPECT_EQ(plan.arena, 384U);
  EXPECT_THAT(plan.offsets, ElementsAre(256, 0, 256));
}

TEST(MemoryPlan, TakesTheSmallestGap) {
  const std::vector<Lifetime> lifetimes{
      {.storage = 0, .bytes = 1024, .first = 0, .last = 0},  // leaves a gap of 1024
      {.storage = 1, .bytes = 640, .first = 0, .last = 9},
      {.storage = 2, .bytes = 512, .first = 0, .last = 0},  // leaves a gap of 512
      {.storage = 3, .bytes = 320, .first = 0, .last = 9},
      {.storage = 4, .bytes = 256, .first = 5, .last = 9},
  };
  const auto plan = plan_memory(lifetimes, 10);
  EXPECT_EQ(plan.offsets[4], plan.offsets[2]);
  EXPECT_EQ(plan.arena, plan.peak);
}

TEST(MemoryPlan, NeverLetsTwoThatLiveTogetherOverlap) {
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  for (int round = 0; round < 50; ++round) {
    std::vector<Lifetime> lifetimes;
    for (std::size_t i = 0; i < 40; ++i) {
      const auto first = below(30);
      lifetimes.push_back({.storage = i, .bytes = below(1000), .first = first, .last = first + below(30 - first)});
    }
    const auto plan = plan_memory(lifetimes, 30);
    EXPECT_GE(plan.arena, plan.peak);
    for (std::size_t a = 0; a < lifetimes.size(); ++a) {
      EXPECT_LE(plan.offsets[a] + lifetimes[a].bytes, plan.arena);
      for (std::size_t b = 0; b < a; ++b) {
        const bool together = lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last;
        const bool overlap = plan.offsets[a] < plan.offsets[b] + lifetimes[b].bytes &&
                             plan.offsets[b] < plan.offsets[a] + lifetimes[a].bytes;
        EXPECT_FALSE(together && overlap);
      }
    }
  }
}

TEST(MemoryPlan, IsExplained) {
  const MakeStep make = [] {
    return [](const at::Tensor& x) -> Tensors {
      auto y = x;
      for (int i = 0; i < 8; ++i) y = y.sin();  // 8 x 1 KiB, of which two live at once
      return {y.view({-1})};
    };
  };
  const auto runs = compare_runs(make, no_passes, {16, 16});
  EXPECT_NE(runs.explained.find("temporaries: a peak of 2.0 KiB of 8.0 KiB made, 2.0 KiB in one arena"),
            std::string::npos)
      << runs.explained;
}

}  // namespace
}  // namespace cohort::test
