// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

namespace cohort {

/// Keeps a stranger who causes the same event thousands of times from filling the log with it. Not thread-safe.
class LogRateLimiter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LogRateLimiter(Clock::duration interval) : interval_(interval) {}

  /// Counts an event. Returns how many there were since one was last told of, this one included; 0: say nothing now.
  std::size_t count(Clock::time_point now = Clock::now()) {
    ++untold_;
    if (has_told_ && now - told_ < interval_) return 0;
    has_told_ = true;
    told_ = now;
    return std::exchange(untold_, 0);
  }

 private:
  Clock::duration interval_;
  Clock::time_point told_{};
  std::size_t untold_ = 0;
  bool has_told_ = false;
};

}  // namespace cohort
