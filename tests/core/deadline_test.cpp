// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/deadline.h>
#include <gtest/gtest.h>

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(DeadlineTest, Expires) {
  EXPECT_TRUE(Deadline::after(0ms).expired());
  EXPECT_TRUE(Deadline::after(-5ms).expired());
  EXPECT_FALSE(Deadline::after(1h).expired());
  EXPECT_EQ(Deadline::after(-5ms).remaining(), 0ns);
  EXPECT_GT(Deadline::after(1h).remaining(), 59min);
}

TEST(DeadlineTest, NeverIsNever) {
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::milliseconds::max()).is_never()) << "no overflow into the past";
  EXPECT_EQ(Deadline::never().poll_timeout(), -1);
}

TEST(DeadlineTest, PollTimeoutRoundsUp) {
  EXPECT_EQ(Deadline::after(-1ms).poll_timeout(), 0);
  const int left = Deadline::after(10ms).poll_timeout();
  EXPECT_GE(left, 1);
  EXPECT_LE(left, 10);
  EXPECT_EQ(Deadline::after(std::chrono::hours(24 * 365)).poll_timeout(), std::numeric_limits<int>::max());
}

TEST(DeadlineTest, EarlierOfTwo) {
  const auto soon = Deadline::after(1s);
  EXPECT_EQ(earlier(soon, Deadline::never()).when(), soon.when());
  EXPECT_EQ(earlier(Deadline::after(1h), soon).when(), soon.when());
}

}  // namespace
}  // namespace cohort::test
