// SPDX-License-Identifier: BSD-3-Clause
#include "core/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <latch>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/log_capture.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Next = Worker::Next;

/// Runs tasks in order. `when_empty` chooses what step() returns when there are none.
struct Tasks final : Worker::Job {
  std::deque<std::function<void()>> tasks;
  std::function<Next()> when_empty = [] { return Next::idle(); };
  std::atomic<int> begun{0};
  std::atomic<int> steps{0};
  std::atomic<bool> saw_stopping{false};
  bool found_nothing = false;  ///< in the last step

  void begin() override { ++begun; }
  Next step(Worker::Lock& lock) override {
    ++steps;
    if (is_stopping()) saw_stopping = true;
    found_nothing = tasks.empty();
    if (found_nothing) return when_empty();
    auto task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    return Next::again();
  }
};

class WorkerTest : public ::testing::Test {
 protected:
  void post(std::function<void()> task, Worker::Time by = Worker::Time::min()) {
    worker_->submit([&] { job_->tasks.push_back(std::move(task)); }, by);
  }
  /// Runs a task and waits for it.
  void run(const std::function<void()>& task) {
    std::latch done{1};
    post([&] {
      task();
      done.count_down();
    });
    done.wait();
  }
  /// Until the thread sleeps: it holds the mutex from a step that found nothing to do until it is asleep.
  void await_sleep() {
    for (;;) {
      {
        const Worker::Lock lock(job_->mutex);
        if (job_->found_nothing) return;
      }
      std::this_thread::yield();
    }
  }

  std::shared_ptr<Tasks> job_ = std::make_shared<Tasks>();
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>("cohort-test", job_);
};

TEST_F(WorkerTest, WithNothingToDoThereIsNoThread) {
  worker_.reset();
  EXPECT_EQ(job_->begun, 0);
  EXPECT_EQ(job_->steps, 0);
}

TEST_F(WorkerTest, OneThreadOfThatNameDoesEverything) {
  std::array<char, 16> name{};
  std::vector<std::thread::id> threads;
  run([&] {
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    threads.push_back(std::this_thread::get_id());
  });
  run([&] { threads.push_back(std::this_thread::get_id()); });
  EXPECT_STREQ(name.data(), "cohort-test");
  EXPECT_EQ(threads[0], threads[1]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
  EXPECT_EQ(job_->begun, 1);
}

TEST_F(WorkerTest, KnowsItsOwnThread) {
  bool is_current = false;
  EXPECT_FALSE(worker_->is_current());
  run([&] { is_current = worker_->is_current(); });
  EXPECT_TRUE(is_current);
  EXPECT_FALSE(worker_->is_current());
  const Worker other("cohort-other", std::make_shared<Tasks>());
  run([&] { is_current = other.is_current(); });
  EXPECT_FALSE(is_current);
}

TEST_F(WorkerTest, SubmitReturnsWhatTheChangeReturns) {
  EXPECT_EQ(worker_->submit([] { return 7; }), 7);
  EXPECT_THROW(worker_->submit([]() -> int { throw std::out_of_range("no"); }), std::out_of_range);
  bool is_done = false;
  run([&] { is_done = true; });
  EXPECT_TRUE(is_done) << "the worker is none the worse";
}

TEST_F(WorkerTest, TheDestructorLetsItFinish) {
  std::vector<int> done;
  for (int i = 0; i < 100; ++i) post([&done, i] { done.push_back(i); });
  worker_.reset();
  ASSERT_EQ(done.size(), 100U);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_TRUE(job_->saw_stopping);
  EXPECT_EQ(job_.use_count(), 1);
}

TEST_F(WorkerTest, SleepsWhileThereIsNothingToDo) {
  run([] {});
  await_sleep();
  const int before = job_->steps;
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(job_->steps, before);
}

TEST_F(WorkerTest, StepsAtTheTimeThatItAskedFor) {
  job_->when_empty = [] { return Next::idle(Worker::Clock::now() + 1ms); };
  run([] {});
  const int before = job_->steps;
  while (job_->steps < before + 5) std::this_thread::yield();
  worker_.reset();
}

TEST_F(WorkerTest, IsStoppedWhileItSleepsForLong) {
  job_->when_empty = [] { return Next::idle(Worker::Clock::now() + 1h); };
  run([] {});
  await_sleep();
  worker_.reset();
}

TEST_F(WorkerTest, DoesNotEndBeforeItIsIdle) {
  std::atomic<bool> may_end{false};
  job_->when_empty = [&] { return may_end ? Next::idle() : Next::at(Worker::Clock::now() + 1ms); };
  run([] {});
  std::atomic<bool> has_ended{false};
  std::jthread stopping([&] {
    worker_.reset();
    has_ended = true;
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(has_ended);
  may_end = true;
  stopping.join();
}

TEST_F(WorkerTest, WhoeverHoldsTheMutexCanWakeIt) {
  std::atomic<bool> is_ready{false};
  job_->when_empty = [&] { return is_ready ? Next::idle() : Next::when_woken(); };
  run([] {});
  await_sleep();
  const int before = job_->steps;
  {
    const Worker::Lock lock(job_->mutex);
    is_ready = true;
    job_->wake();
  }
  while (job_->steps == before) std::this_thread::yield();
  worker_.reset();  // its last step still reads is_ready
}

TEST_F(WorkerTest, AWakeDuringAStepIsNotLost) {
  std::latch is_in{1};
  std::latch go{1};
  std::latch is_done{1};
  post([&] {
    is_in.count_down();
    go.wait();
  });
  is_in.wait();
  post([&] { is_done.count_down(); });
  go.count_down();
  is_done.wait();
}

TEST_F(WorkerTest, IsNotWokenIfItLooksInTimeByItself) {
  job_->when_empty = [] { return Next::idle(Worker::Clock::now() + 1h); };
  run([] {});
  await_sleep();
  const int before = job_->steps;
  std::atomic<bool> is_done{false};
  post([&] { is_done = true; }, Worker::Clock::now() + 2h);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(job_->steps, before);
  run([] {});
  EXPECT_TRUE(is_done);
}

TEST_F(WorkerTest, IsWokenIfItWouldLookTooLate) {
  for (const auto sleeps : {Worker::Clock::duration(1h), Worker::Clock::duration::max()}) {
    worker_->submit([&] {
      job_->when_empty = [sleeps] {
        return Next::idle(sleeps == sleeps.max() ? Worker::Time::max() : Worker::Clock::now() + sleeps);
      };
    });
    run([] {});
    await_sleep();
    std::latch is_done{1};
    post([&] { is_done.count_down(); }, sleeps == sleeps.max() ? Worker::Time::max() : Worker::Clock::now() + 10ms);
    is_done.wait();
  }
}

TEST_F(WorkerTest, AnExceptionIsLoggedAndTheThreadGoesOn) {
  LogCapture logged;
  post([] { throw std::runtime_error("too bad"); });
  post([] { throw 7; });
  run([] {});
  EXPECT_THAT(logged.text(), ::testing::HasSubstr("helper thread: too bad"));
  worker_.reset();
}

TEST_F(WorkerTest, MayBeDestroyedOnItsOwnThread) {
  std::latch go{1};
  std::latch is_over{1};
  std::atomic<bool> was_current{false};
  post([&] {
    go.wait();
    was_current = worker_->is_current();
    worker_.reset();
  });
  post([&] { is_over.count_down(); });  // remaining tasks are still run
  go.count_down();
  is_over.wait();
  EXPECT_TRUE(was_current);
  while (job_.use_count() > 1) std::this_thread::yield();
}

TEST_F(WorkerTest, AChildProcessCanDestroyItsParentsWorker) {
  run([] {});
  await_sleep();
  Process child([&] {
    worker_.reset();
    job_.reset();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  bool is_done = false;
  run([&] { is_done = true; });
  EXPECT_TRUE(is_done);
}

TEST(WorkerThreads, ManySubmitWhileItComesAndGoes) {
  for (int round = 0; round < 20; ++round) {
    const auto job = std::make_shared<Tasks>();
    if (round % 2 == 1) job->when_empty = [] { return Next::idle(Worker::Clock::now() + 50us); };
    int done = 0;  // used only by the thread until it is joined
    {
      Worker worker("cohort-test", job);
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          for (int each = 0; each < 100; ++each) {
            worker.submit([&] { job->tasks.emplace_back([&done] { ++done; }); },
                          each % 3 == 0 ? Worker::Clock::now() + 20us : Worker::Time::min());
          }
        });
      }
    }
    EXPECT_EQ(done, 400);
  }
}

TEST(WorkerThreads, DestroyedByTheLastOfManyTasks) {
  struct Owner {
    std::shared_ptr<Tasks> job = std::make_shared<Tasks>();
    Worker worker{"cohort-test", job};
  };
  for (int round = 0; round < 50; ++round) {
    auto owner = std::make_shared<Owner>();
    const auto job = owner->job;
    std::latch is_gone{1};
    for (int each = 0; each < 10; ++each) {
      owner->worker.submit([&] { job->tasks.emplace_back([owner] {}); });
    }
    owner->worker.submit([&] { job->tasks.emplace_back([&is_gone] { is_gone.count_down(); }); });
    owner.reset();
    is_gone.wait();
    while (job.use_count() > 1) std::this_thread::yield();
  }
}

}  // namespace
}  // namespace cohort::test
