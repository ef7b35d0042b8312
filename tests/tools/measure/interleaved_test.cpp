// SPDX-License-Identifier: BSD-3-Clause
#include "measure/interleaved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace cohort::bench;
using testing::ElementsAre;

TEST(BenchInterleaved, TheFirstToBeMeasuredChangesFromRoundToRound) {
  std::vector<std::size_t> order;
  const auto figures = take_turns(3, 2, [&](std::size_t contestant) {
    order.push_back(contestant);
    return static_cast<double>(order.size());
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 1, 2, 0));
  EXPECT_THAT(figures, ElementsAre(ElementsAre(1, 6), ElementsAre(2, 4), ElementsAre(3, 5)));
}

TEST(BenchInterleaved, TwoWaysAreComparedRoundByRound) {
  double disturbance = 0;
  const auto time = [&](int which, int) {
    disturbance += 1;  // the machine becomes slower and slower
    return (which == 0 ? 10.0 : 20.0) * (1 + disturbance / 1000);
  };
  const auto result = interleave(time, 11);
  EXPECT_NEAR(result.ratio, 2, 0.01);
  EXPECT_NEAR(result.difference, result.second - result.first, 0.5);
}

TEST(BenchInterleaved, AllWhoMeasureRepeatEquallyOften) {
  std::vector<int> repeats;
  interleave(
      [&](int, int times) {
        repeats.push_back(times);
        return 10.0;
      },
      1, [](int proposed) { return proposed + 7; });
  EXPECT_THAT(repeats, ElementsAre(3, 5, 107, 107, 107));
}

TEST(BenchInterleaved, OverheadIsJudgedByRatioWhereItIsLargeAndByDifferenceBelow) {
  const Interleaved measured{.first = 100, .second = 104, .ratio = 1.04, .difference = 4};
  const auto large = overhead_row("all_reduce", 64U << 10U, measured, "Gloo");
  EXPECT_EQ(large.ratio, 1.04);
  EXPECT_EQ(large.difference, std::nullopt);
  const auto small = overhead_row("all_reduce", 1024, measured, "Gloo");
  EXPECT_EQ(small.ratio, std::nullopt);
  EXPECT_EQ(small.difference, 4);
  EXPECT_EQ(small.bar->value, 3);
}

}  // namespace
