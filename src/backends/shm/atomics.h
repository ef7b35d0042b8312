// SPDX-License-Identifier: BSD-3-Clause
//
// What the flags are made of. Everything that synchronises ranks is templated on such a policy, so that tests can put
// in atomics whose loads return whatever the C++ memory model allows and a scheduler that decides who runs
// (tests/model).
#pragma once

#include <linux/futex.h>
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

  /// Between two looks at a flag: tells the core that this is a wait, so that its sibling gets the execution units.
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }

  /// Sleeps while `word` is `expected`, at most `at_most`; may return early. The word may lie in memory that several
  /// processes map, so the futex is not a private one.
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
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4,
              "a futex word is 32 bits, and atomics shared between processes must not use locks");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace cohort::shm
