// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>

#include <condition_variable>
#include <mutex>

#include "core/wait_until.h"

namespace cohort {

/// A mutex that can be waited for until a deadline. (std::timed_mutex can too, but GCC 12's thread sanitizer does not
/// see that it is locked.)
class TimedMutex {
 public:
  /// Returns false if the deadline passed first.
  bool lock(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto is_free = [this] { return !is_locked_; };
    if (!wait_until(free_, lock, deadline, is_free)) return false;
    is_locked_ = true;
    return true;
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      is_locked_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool is_locked_ = false;
};

/// Holds the mutex for a scope. Converts to false if the deadline passed first.
class TimedLock {
 public:
  TimedLock(TimedMutex& mutex, Deadline deadline) : mutex_(mutex), holds_(mutex.lock(deadline)) {}
  ~TimedLock() {
    if (holds_) mutex_.unlock();
  }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;
  explicit operator bool() const { return holds_; }

 private:
  TimedMutex& mutex_;
  bool holds_;
};

}  // namespace cohort
