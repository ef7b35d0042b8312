// SPDX-License-Identifier: BSD-3-Clause
#include "measure/statistics.h"

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace {

using namespace cohort::measure;
using testing::ElementsAre;

TEST(BenchStatistics, PercentilesLieBetweenTheNearestValues) {
  EXPECT_DOUBLE_EQ(percentile({3, 1, 2}, 50), 2);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 2, 3}, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3, 4, 5}, 0), 1);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3, 4, 5}, 100), 5);
  EXPECT_DOUBLE_EQ(percentile({7}, 99), 7);
  std::vector<double> hundred_one;
  for (int i = 0; i <= 100; ++i) hundred_one.push_back(i);
  EXPECT_DOUBLE_EQ(percentile(hundred_one, 99), 99);
  EXPECT_ERROR(cohort::AssertionError, percentile({}, 50), "no values");
}

TEST(BenchStatistics, RoundsAreComparedOneByOne) {
  EXPECT_DOUBLE_EQ(median_ratio({2, 40, 6}, {1, 10, 2}), 3);
  EXPECT_DOUBLE_EQ(median_difference({2, 40, 6}, {1, 10, 2}), 4);
  EXPECT_DOUBLE_EQ(median_ratio({2, 40, 6}, {1}), 2) << "rounds that only one of them has do not count";
}

TEST(BenchStatistics, ASpoiledRoundDoesNotMoveTheMedian) {
  const SampleRounds rounds{{{1, 1, 1}, {900, 900, 900}, {2, 2, 2}}};
  EXPECT_THAT(rounds.medians(), ElementsAre(1, 900, 2));
  const auto summary = summarize(rounds);
  EXPECT_DOUBLE_EQ(summary.p50, 2);
  EXPECT_DOUBLE_EQ(summary.min, 1);
  EXPECT_DOUBLE_EQ(summary.p99, 900);
  EXPECT_DOUBLE_EQ(summary.mean, 301);
  EXPECT_EQ(summary.samples, 9U);
}

}  // namespace
