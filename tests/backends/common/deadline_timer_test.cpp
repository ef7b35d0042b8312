// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/deadline_timer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(DeadlineTimerTest, RingsWhenItsTimeHasComeAndNotBefore) {
  std::latch rung(1);
  const auto when = Clock::now() + 30ms;
  Clock::time_point at;
  const DeadlineTimer timer(when, [&] {
    at = Clock::now();
    rung.count_down();
  });
  rung.wait();
  EXPECT_GE(at, when);
}

TEST(DeadlineTimerTest, TakenBackDoesNotRing) {
  std::atomic<int> rings{0};
  std::latch later(1);
  {
    const DeadlineTimer timer(Clock::now() + 20ms, [&] { ++rings; });
  }
  const DeadlineTimer behind(Clock::now() + 40ms, [&] { later.count_down(); });
  later.wait();
  EXPECT_EQ(rings, 0);
}

TEST(DeadlineTimerTest, TakingBackWaitsForTheEndOfRinging) {
  std::latch begun(1);
  std::latch may_end(1);
  std::atomic<bool> has_ended{false};
  auto timer = std::make_unique<DeadlineTimer>(Clock::now(), [&] {
    begun.count_down();
    may_end.wait();
    has_ended = true;
  });
  begun.wait();
  std::jthread releases([&] { may_end.count_down(); });
  timer.reset();
  EXPECT_TRUE(has_ended);
}

TEST(DeadlineTimerTest, ManyInAnyOrderFromManyThreads) {
  std::atomic<int> rings{0};
  std::latch all(100);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::unique_ptr<DeadlineTimer>> timers;
      for (int i = 0; i < 50; ++i) {
        const bool is_kept = i % 2 == 0;
        const auto when = Clock::now() + std::chrono::milliseconds((i * 7 + thread) % 20 + (is_kept ? 0 : 10'000));
        timers.push_back(std::make_unique<DeadlineTimer>(when, [&] {
          ++rings;
          all.count_down();
        }));
      }
      all.wait();
    });
  }
  threads.clear();
  EXPECT_EQ(rings, 100);
}

TEST(DeadlineTimerTest, RingsInAForkedChildToo) {
  const DeadlineTimer parents(Clock::now() + 1h, [] {});
  Process child([] {
    std::latch rung(1);
    const DeadlineTimer timer(Clock::now() + 5ms, [&] { rung.count_down(); });
    rung.wait();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace cohort::test
