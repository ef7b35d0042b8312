// SPDX-License-Identifier: BSD-3-Clause
#include "core/run_with_deadline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>

#include "support/log_capture.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

Deadline soon() {
  return Deadline::after(20ms);
}
Deadline late() {
  return Deadline::after(60s);
}

TEST(RunWithDeadlineTest, WaitsForTheBody) {
  bool is_done = false;
  std::thread::id thread;
  EXPECT_TRUE(run_with_deadline(
      [&] {
        thread = std::this_thread::get_id();
        is_done = true;
      },
      late()));
  EXPECT_TRUE(is_done);
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_TRUE(run_with_deadline([] {}, Deadline::never()));
}

TEST(RunWithDeadlineTest, WhatTheBodyHeldIsGoneOnReturn) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  EXPECT_TRUE(run_with_deadline([held = std::move(held)] {}, late()));
  EXPECT_TRUE(seen.expired());
}

TEST(RunWithDeadlineTest, RethrowsWhatTheBodyThrew) {
  EXPECT_THROW(run_with_deadline([] { throw std::out_of_range("7"); }, late()), std::out_of_range);
  EXPECT_THROW(run_with_deadline([] { throw 7; }, late()), int);
}

TEST(RunWithDeadlineTest, ALateBodyGoesOnAndItsOwnerWaitsForIt) {
  std::latch go{1};
  std::atomic<bool> is_done{false};
  {
    LateThreads threads;
    EXPECT_FALSE(run_with_deadline(
        [&] {
          go.wait();
          is_done = true;
        },
        soon(), threads));
    EXPECT_EQ(threads.join_ended(), 1U);
    EXPECT_TRUE(run_with_deadline([] {}, late(), threads)) << "a late one does not keep others from running";
    EXPECT_FALSE(is_done);
    go.count_down();
  }
  EXPECT_TRUE(is_done);
}

TEST(RunWithDeadlineTest, LateThreadsAreJoinedOnceTheyHaveEnded) {
  auto& threads = LateThreads::of_process();
  ASSERT_EQ(threads.join_ended(), 0U);
  const auto go = std::make_shared<std::latch>(1);
  EXPECT_FALSE(run_with_deadline([go] { go->wait(); }, soon()));
  EXPECT_FALSE(run_with_deadline([go] { go->wait(); }, soon()));
  EXPECT_EQ(threads.join_ended(), 2U);
  go->count_down();
  while (threads.join_ended() > 0) std::this_thread::yield();
}

TEST(RunWithDeadlineTest, WhatALateBodyThrowsIsLogged) {
  LogCapture logged;
  std::latch go{1};
  {
    LateThreads threads;
    EXPECT_FALSE(run_with_deadline(
        [&] {
          go.wait();
          throw std::runtime_error("too late");
        },
        soon(), threads));
    go.count_down();
  }
  EXPECT_THAT(logged.text(), ::testing::HasSubstr("too late"));
}

TEST(RunWithDeadlineTest, ADeadlineThatHasPassedStillRunsTheBody) {
  std::atomic<bool> is_done{false};
  {
    LateThreads threads;
    run_with_deadline([&] { is_done = true; }, Deadline::at(Deadline::Clock::now() - 1s), threads);
  }
  EXPECT_TRUE(is_done);
}

TEST(RunWithDeadlineThreads, ManyAtATime) {
  LateThreads threads;
  std::atomic<int> done{0};
  std::vector<std::jthread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        run_with_deadline([&] { ++done; }, round % 2 == 0 ? late() : Deadline::at({}), threads);
      }
    });
  }
  callers.clear();
  threads.join_all();
  EXPECT_EQ(done, 80);
}

}  // namespace
}  // namespace cohort::test
