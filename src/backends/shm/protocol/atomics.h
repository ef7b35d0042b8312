// SPDX-License-Identifier: BSD-3-Clause
//
// The atomic operations that flags are built on. Everything that synchronises ranks is templated on this policy, so
// that tests can substitute atomics whose loads return any value the C++ memory model allows, together with a scheduler
// that decides which thread runs (tests/model).
#pragma once

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace cohort::shm {

struct StdAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  /// Called between two loads of a flag: tells the core that this is a wait loop, so that its sibling gets the
  /// execution units.
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }

  /// Asks for a line before it is written, so that the store does not wait until the readers of its last value have
  /// given it up.
  static void will_write(const void* line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(line)));  // GCC emits it for some processors only
#else
    __builtin_prefetch(line, 1);
#endif
  }

  /// The two halves of a full fence between a rank that raises a flag, which is frequent, and one that goes to sleep,
  /// which is rare. The sleeper's half has the kernel execute a full barrier on every processor where a rank runs
  /// (membarrier(2)). This makes the raiser's half free: only the compiler must keep the order. Together they order as
  /// two seq_cst fences do, and the model in tests/model substitutes seq_cst fences for both.
  static void light_fence() {
    if (has_membarrier()) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      full_fence();
    }
  }
  static void heavy_fence() {
    if (!has_membarrier() || !membarrier()) full_fence();
  }

  /// Sleeps while `word` equals `expected`, for at most `at_most`; may return early. The word may lie in memory that
  /// several processes map, so the futex is not a private one.
  static void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds at_most) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(seconds.count());
    limit.tv_nsec = static_cast<long>((at_most - seconds).count());
    ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
  }
  static void futex_wake(Atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  /// Called before the first group is used, and does something the first time only. From then on, heavy fences of other
  /// processes take effect in this one. In a process with several threads it takes the kernel some 10 ms.
  static void prepare() noexcept {
    if (!has_membarrier()) has_membarrier_.store(register_for_membarrier(), std::memory_order_relaxed);
  }

 private:
  static bool has_membarrier() noexcept { return has_membarrier_.load(std::memory_order_relaxed); }
  static bool register_for_membarrier() noexcept {
    return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  }
  static bool membarrier() { return ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }
  static void full_fence() {
#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
    asm volatile("mfence" ::: "memory");  // thread sanitizer supports no fences, and knows this order without one
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }

  static inline std::atomic<bool> has_membarrier_{false};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4,
              "a futex word is 32 bits, and atomics shared between processes must not use locks");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace cohort::shm
