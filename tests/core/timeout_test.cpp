// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/timeout.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>

namespace cohort {

namespace {

using namespace std::chrono_literals;

TEST(Timeout, IsTheCalleesUnlessGiven) {
  EXPECT_TRUE(Timeout().is_default());
  EXPECT_EQ(Timeout().duration_or(7s), 7s);
  EXPECT_FALSE(Timeout(5s).is_default());
  EXPECT_EQ(Timeout(5s).duration_or(7s), 5s);
}

TEST(Timeout, RoundsUp) {
  EXPECT_EQ(Timeout(1us).duration_or(7s), 1ms);
}

TEST(Timeout, ZeroAndNegativeAreRefused) {
  EXPECT_THROW(Timeout(0ms), ValueError);
  EXPECT_THROW(Timeout(-1ms), ValueError);
  EXPECT_THROW(Timeout(-1ns), ValueError);
  EXPECT_THROW(Timeout(std::chrono::hours::min()), ValueError);
  EXPECT_THROW(Timeout(-0.5s), ValueError);
  EXPECT_THROW(Timeout(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())), ValueError);
}

TEST(Timeout, NoTimeoutIsNever) {
  EXPECT_TRUE(Timeout(no_timeout).deadline_or(1s).is_never());
  EXPECT_TRUE(Timeout(std::chrono::hours::max()).deadline_or(1s).is_never());
  EXPECT_TRUE(Timeout(std::chrono::hours(std::int64_t{1} << 50U)).deadline_or(1s).is_never()) << "not negative";
  EXPECT_TRUE(Timeout(1e300s).deadline_or(1s).is_never());
  EXPECT_EQ(Timeout(Deadline::never()).duration_or(1s), no_timeout);
}

TEST(Timeout, ADeadlineIsKept) {
  const auto deadline = Deadline::after(1h);
  EXPECT_EQ(Timeout(deadline).deadline_or(1s).when(), deadline.when());
  EXPECT_LE(Timeout(deadline).duration_or(1s), 1h);
  EXPECT_GT(Timeout(deadline).duration_or(1s), 59min);
  EXPECT_EQ(Timeout(Deadline::after(0ms)).duration_or(1s), 0ms);
}

}  // namespace

}  // namespace cohort
