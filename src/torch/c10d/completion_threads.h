// SPDX-License-Identifier: BSD-3-Clause
//
// The threads that complete c10d's futures. A future's callbacks run on the thread that completes it, and callbacks of
// communication hooks wait for further operations (PowerSGD's do). One thread for all would wait for itself then, so
// there are as many as callbacks that are running.
#pragma once

#include <cohort/deadline.h>
#include <cohort/future.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace cohort {

/// Process-wide and thread-safe. The threads live as long as the process, like c10d's own: a callback may be anybody's
/// code, which nothing could wait for.
class CompletionThreads final : public Executor {
 public:
  static std::shared_ptr<CompletionThreads> instance();

  /// Runs the task on a thread that has nothing else to do, which is started if there is none.
  void run(std::function<void()> task) override;

  /// No task begins any more. Waits for those that run, but not beyond the deadline.
  void stop(Deadline deadline);

 private:
  void serve() noexcept;
  /// Runs the first task, which there is. The lock is released meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock) noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::size_t threads_ = 0;
  std::size_t idle_ = 0;
  std::size_t running_ = 0;
  bool is_stopped_ = false;
};

}  // namespace cohort
