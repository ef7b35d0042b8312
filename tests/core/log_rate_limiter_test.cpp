// SPDX-License-Identifier: BSD-3-Clause
#include "core/log_rate_limiter.h"

#include <gtest/gtest.h>

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(OccasionallyTest, TellsOfTheFirstAndThenOnceInAnInterval) {
  LogRateLimiter events(10s);
  const LogRateLimiter::Clock::time_point start{};
  EXPECT_EQ(events.count(start), 1U);
  EXPECT_EQ(events.count(start + 1s), 0U);
  EXPECT_EQ(events.count(start + 9s), 0U);
  EXPECT_EQ(events.count(start + 10s), 3U) << "those that were not told of are in the number";
  EXPECT_EQ(events.count(start + 11s), 0U);
  EXPECT_EQ(events.count(start + 100s), 2U);
}

}  // namespace
}  // namespace cohort::test
