// SPDX-License-Identifier: BSD-3-Clause
//
// A flag is a counter that one rank raises and others wait for. It has one writer and only ever goes up (modulo 2^32:
// compared as serial numbers, RFC 1982), so waiting is "at least", and nobody ever resets anything.
//
// Memory order. raise() publishes what its rank wrote before: it is a release, and await() an acquire. The other
// direction is the sleeper's: a waiter that goes to sleep writes `sleepers` and then looks at `value`; the raiser
// writes `value` and then looks at `sleepers`. Each must see the other's write or be seen (Dekker), which takes a
// seq_cst fence between the two accesses on either side. Raising is frequent and going to sleep is rare, so the fence
// is the sleeper's (atomics.h): a raise is a plain store and a load of the same line. Should a wake-up be lost all the
// same (a process that is not allowed membarrier), the sleeper looks again after its nap.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cohort::shm {

/// What a waiter does next.
enum class Pace : std::uint8_t { look, sleep };

constexpr bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

template <class Atomics>
struct Flag {
  typename Atomics::template Atomic<std::uint32_t> value;
  /// How many have gone to sleep, or are about to. A count and not a mark: a raiser that cleared a mark could wipe out
  /// that of a waiter for the next value.
  typename Atomics::template Atomic<std::uint32_t> sleepers;
};

template <class Atomics>
void raise(Flag<Atomics>& flag, std::uint32_t value) {
  flag.value.store(value, std::memory_order_release);
  Atomics::light_fence();
  if (flag.sleepers.load(std::memory_order_relaxed) != 0) Atomics::futex_wake(flag.value);
}

template <class Atomics>
bool is_raised(const Flag<Atomics>& flag, std::uint32_t target) {
  return reached(flag.value.load(std::memory_order_acquire), target);
}

/// `monitor` is asked between looks what to do next: it yields the processor, gives up by throwing, or says to sleep, and
/// for how long at most.
template <class Atomics, class WaitMonitor>
void await(Flag<Atomics>& flag, std::uint32_t target, WaitMonitor& monitor) {
  for (std::uint32_t round = 0; !is_raised(flag, target); ++round) {
    if (monitor.next(round) == Pace::look) {
      Atomics::pause();
      continue;
    }
    flag.sleepers.fetch_add(1, std::memory_order_relaxed);
    Atomics::heavy_fence();
    const auto seen = flag.value.load(std::memory_order_relaxed);
    if (!reached(seen, target)) Atomics::futex_wait(flag.value, seen, monitor.nap());
    flag.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace cohort::shm
