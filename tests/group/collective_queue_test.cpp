// SPDX-License-Identifier: BSD-3-Clause
#include "group/collective_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace cohort {
namespace {

/// Threads queue operations and wait for them, as callers of Work::wait() do; others enter when the queue is idle.
TEST(CollectiveQueue, ThreadsThatHelpKeepTheOrderAndRunOneAtATime) {
  constexpr int threads = 4;
  constexpr int rounds = 2000;
  CollectiveQueue queue("queue-test");
  std::atomic<int> running{0};
  std::atomic<bool> has_overlapped{false};
  std::atomic<int> helped{0};
  std::uint64_t last = 0;  // protected by the turn
  std::atomic<bool> is_out_of_order{false};
  const auto operation = [&](std::uint64_t sequence) {
    if (running.fetch_add(1) != 0) has_overlapped = true;
    if (sequence <= last) is_out_of_order = true;
    last = sequence;
    running.fetch_sub(1);
  };
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread) {
    all.emplace_back([&, thread] {
      const auto caller = std::this_thread::get_id();
      for (int round = 0; round < rounds; ++round) {
        if ((round + thread) % 3 == 0) {
          if (const auto sequence = queue.try_enter()) {
            operation(*sequence);
            queue.leave();
            continue;
          }
        }
        std::latch is_done(1);
        const auto sequence = queue.enqueue([&](std::uint64_t number) {
          operation(number);
          if (std::this_thread::get_id() == caller) ++helped;
          is_done.count_down();
        });
        queue.helper()->help_until(sequence);
        is_done.wait();
      }
    });
  }
  for (auto& each : all) each.join();
  queue.wait_until_idle();
  EXPECT_FALSE(has_overlapped);
  EXPECT_FALSE(is_out_of_order);
  EXPECT_EQ(last, std::uint64_t{threads} * rounds);
  EXPECT_GT(helped, 0);
}

TEST(CollectiveQueue, AThreadThatHelpsIsTheQueuesOwnUntilTheOperationEnds) {
  CollectiveQueue queue("queue-test");
  std::atomic<int> own{0};
  for (int round = 0; round < 100; ++round) {
    std::latch is_done(1);
    const auto sequence = queue.enqueue([&](std::uint64_t /*number*/) {
      if (queue.is_own_thread()) ++own;
      is_done.count_down();
    });
    queue.helper()->help_until(sequence);
    is_done.wait();
    EXPECT_FALSE(queue.is_own_thread());
  }
  EXPECT_EQ(own, 100);
}

TEST(CollectiveQueue, HelpingStopsAtTheOperationThatIsWaitedFor) {
  CollectiveQueue queue("queue-test");
  std::latch may_go(1);
  std::latch is_done(1);
  const auto first = queue.enqueue([&](std::uint64_t /*number*/) {});
  queue.enqueue([&](std::uint64_t /*number*/) {
    may_go.wait();
    is_done.count_down();
  });
  queue.helper()->help_until(first);  // would not return if it ran the second one
  may_go.count_down();
  is_done.wait();
}

}  // namespace
}  // namespace cohort
