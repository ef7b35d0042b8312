// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace cohort {

struct TimerQueue;

/// Calls `ring` at a given time, to stop what an engine cannot stop by itself, unless the timer is destroyed before.
/// Costs a lock and an allocation. The process has one timer thread, which is woken only by a timer that expires before
/// the thread would wake anyway: among successive operations with the same timeout, only the first wakes it.
class DeadlineTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  DeadlineTimer(Time when, std::function<void()> ring);
  /// If `ring` is being called, the destructor waits until it has returned.
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

 private:
  friend struct TimerQueue;
  enum class State : std::uint8_t { set, ringing, rung };

  TimerQueue& queue_;
  const Time when_;
  std::function<void()> ring_;
  State state_ = State::set;  ///< protected by the queue's lock
};

}  // namespace cohort
