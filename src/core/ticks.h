// SPDX-License-Identifier: BSD-3-Clause
//
// The cheapest clock there is: the processor's counter, which runs at a constant rate and is the same on all cores of
// every machine where Linux uses it as a clock source. Reading it costs a third of what std::chrono costs, and no
// system call. Its unit is determined only when somebody asks for nanoseconds:
//
//   const TickClock clock;                       // early, once
//   const auto before = ticks(); ...; const auto after = ticks();
//   const auto scale = clock.scale();            // late, whenever something is shown
//   scale.epoch_ns(before), scale.duration_ns(before, after)
#pragma once

#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cohort {

inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

/// Converts ticks that were read up to now to time.
class TickScale {
 public:
  TickScale(std::uint64_t now_ticks, std::int64_t now_epoch_ns, double ns_per_tick)
      : now_ticks_(now_ticks), now_epoch_ns_(now_epoch_ns), ns_per_tick_(ns_per_tick) {}

  /// Nanoseconds since 1970.
  std::int64_t epoch_ns(std::uint64_t at) const { return now_epoch_ns_ + duration_ns(now_ticks_, at); }
  /// Negative if `to` is before `from`.
  std::int64_t duration_ns(std::uint64_t from, std::uint64_t to) const {
    return static_cast<std::int64_t>(static_cast<double>(static_cast<std::int64_t>(to - from)) * ns_per_tick_);
  }

 private:
  std::uint64_t now_ticks_;
  std::int64_t now_epoch_ns_;
  double ns_per_tick_;
};

/// Remembers when it was made, in ticks and on the steady clock. Ticks read between then and scale() are interpolated,
/// so that even the times of two readings in quick succession are off by no more than the delay between the two clocks.
class TickClock {
 public:
  TickClock();
  TickScale scale() const;

 private:
  struct Reading {
    std::uint64_t ticks;
    std::chrono::steady_clock::time_point time;
  };
  static Reading read();

  Reading start_;
};

}  // namespace cohort
