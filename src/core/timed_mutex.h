// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>

#include <condition_variable>
#include <mutex>

#include "core/wait_until.h"

namespace cohort {

/// A mutex that can be waited for until a deadline. (std::timed_mutex can too, but GCC 12's thread sanitizer does not
/// see that it is locked.)
class Turn {
 public:
  /// Holds the turn for a scope. Converts to false if the deadline passed first.
  class Holder {
   public:
    Holder(Turn& turn, Deadline deadline) : turn_(turn), holds_(turn.take(deadline)) {}
    ~Holder() {
      if (holds_) turn_.give_back();
    }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    explicit operator bool() const { return holds_; }

   private:
    Turn& turn_;
    bool holds_;
  };

 private:
  bool take(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto is_free = [this] { return !taken_; };
    if (!wait_until(free_, lock, deadline, is_free)) return false;
    taken_ = true;
    return true;
  }
  void give_back() {
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
    }
    free_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
};

}  // namespace cohort
