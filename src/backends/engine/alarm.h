// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace cohort {

struct Belfry;

/// Ends what an engine cannot end by itself: calls `ring` when the time has come, unless it is taken back before, which
/// its destructor does. Costs a lock and an allocation; the process's one alarm thread is woken only by an alarm that
/// is due before it would look anyway: of operations with the same timeout, one after another, by the first alone.
class Alarm {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Alarm(Time when, std::function<void()> ring);
  /// If it is ringing, waits for the end of that.
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  friend struct Belfry;
  enum class State : std::uint8_t { set, ringing, rung };

  Belfry& belfry_;
  const Time when_;
  std::function<void()> ring_;
  State state_ = State::set;  ///< under the belfry's lock
};

}  // namespace cohort
