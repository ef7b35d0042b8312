// SPDX-License-Identifier: BSD-3-Clause
#include "core/reaper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "support/ranks.h"

namespace cohort::test {
namespace {

/// A thread that hands itself over to be joined by others once `go` is set.
struct LeavesItself {
  std::atomic<bool> go = false;
  std::atomic<bool> is_left = false;
  std::thread thread;

  void start() {
    thread = std::thread([this] {
      while (!go) std::this_thread::yield();
      join_now_or_later(std::move(thread));
      is_left = true;
    });
  }
};

TEST(ReaperTest, JoinsAnotherThreadAtOnce) {
  std::atomic<bool> done = false;
  join_now_or_later(std::thread([&] { done = true; }));
  EXPECT_TRUE(done);
  join_now_or_later(std::thread());
}

TEST(ReaperTest, JoinsAThreadThatLeftItself) {
  LeavesItself leaving;
  leaving.start();
  leaving.go = true;
  while (!leaving.is_left) std::this_thread::yield();
  // Also joins the other thread; otherwise ThreadSanitizer reports a thread leak.
  join_now_or_later(std::thread([] {}));
  EXPECT_FALSE(leaving.thread.joinable());
}

TEST(ReaperTest, AThreadMayLeaveItselfWhileTheProcessExits) {
  for (int round = 0; round < 15; ++round) {
    Process child([]() -> int {
      const auto leaving = std::make_unique<LeavesItself>();
      join_now_or_later(std::thread([] {}));
      leaving->start();
      leaving->go = true;
      std::exit(0);
    });
    EXPECT_EQ(child.wait(), 0);
  }
}

}  // namespace
}  // namespace cohort::test
