// SPDX-License-Identifier: BSD-3-Clause
//
// A flag is a counter that one rank raises and others wait for. It has one writer and only ever goes up (modulo 2^32:
// compared as serial numbers, RFC 1982), so that waiting means "at least", and nothing is ever reset.
//
// Memory order. raise() publishes what its rank wrote before: raise() is a release and await() an acquire. The opposite
// direction concerns sleeping: a waiter that goes to sleep writes `sleepers` and then reads `value`; the raiser writes
// `value` and then reads `sleepers`. At least one of the two must see the other's write (Dekker), which takes a seq_cst
// fence between the two accesses on either side. Raising is frequent and going to sleep is rare, so the cost of the
// fence is put on the sleeper (atomics.h): a raise is a plain store and a load of the same cache line. If a wake-up is
// lost all the same (because a process is not allowed to use membarrier), the sleeper reads the flag again after its
// sleep.
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
  /// A pause takes as long as an answer from a near core, so the first looks go without.
  static constexpr std::uint32_t looks_without_pause = 16;

  typename Atomics::template Atomic<std::uint32_t> value;
  /// How many waiters have gone to sleep or are about to. This is a count rather than a boolean: a raiser that cleared
  /// a boolean could clear it for a waiter for the next value.
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

/// `monitor` is asked between two reads of the flag what to do next: it yields the processor, gives up by throwing, or
/// tells the waiter to sleep and for how long at most.
template <class Atomics, class WaitMonitor>
void await(Flag<Atomics>& flag, std::uint32_t target, WaitMonitor& monitor) {
  for (std::uint32_t round = 0; !is_raised(flag, target); ++round) {
    if (monitor.next(round) == Pace::look) {
      if (round >= Flag<Atomics>::looks_without_pause) Atomics::pause();
      continue;
    }
    flag.sleepers.fetch_add(1, std::memory_order_relaxed);
    Atomics::heavy_fence();
    const auto seen = flag.value.load(std::memory_order_relaxed);
    if (!reached(seen, target)) Atomics::futex_wait(flag.value, seen, monitor.max_sleep());
    flag.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace cohort::shm
