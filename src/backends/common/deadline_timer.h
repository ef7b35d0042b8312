// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace cohort {

struct TimerQueue;

/// Ends what an engine cannot end by itself: calls `ring` when the time has come, unless it is taken back before, which
/// its destructor does. Costs a lock and an allocation; the process's one timer thread is woken only by an timer that
/// is due before it would look anyway: of operations with the same timeout, one after another, by the first alone.
class DeadlineTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  DeadlineTimer(Time when, std::function<void()> ring);
  /// If it is ringing, waits for the end of that.
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

 private:
  friend struct TimerQueue;
  enum class State : std::uint8_t { set, ringing, rung };

  TimerQueue& queue_;
  const Time when_;
  std::function<void()> ring_;
  State state_ = State::set;  ///< under the timer_queue's lock
};

}  // namespace cohort
