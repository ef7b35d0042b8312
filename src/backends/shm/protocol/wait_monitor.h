// SPDX-License-Identifier: BSD-3-Clause
//
// How a rank waits for another, in a collective or for a message, and when it stops waiting.
//
// If every rank has a processor of its own, the waiter spins: the answer is usually less than a microsecond away, while
// waking a sleeper takes forty. If ranks outnumber processors, it yields at once, since the awaited rank may need this
// very processor; even a short spin costs more than the yield. In both cases a wait of more than a millisecond sleeps.
//
// During the wait the group may fail, a peer may die or leave, or the deadline may pass. None of these is checked while
// spinning (well under a millisecond), and a waiter sleeps so briefly that all of them are noticed in time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "backends/shm/engine.h"
#include "backends/shm/protocol/flags.h"

namespace cohort::shm {

class WaitMonitor {
 public:
  WaitMonitor(Engine& engine, Call& call, Engine::Wait kind)
      : engine_(engine), call_(call), kind_(kind), long_wait_(engine.waiting()) {}

  /// A wait begins. A message may be awaited from any rank (-1).
  void waits_for(int rank) {
    awaited_ = rank;
    sleeps_from_ = {};
    looks_again_ = false;
  }

  Pace next(std::uint32_t round) {
    if (round == 0) call_.waits();
    if (round < engine_.policy().spins) return Pace::look;
    return after_spinning();
  }
  std::chrono::nanoseconds max_sleep() const { return max_sleep(call_.deadline()); }
  /// How long a rank sleeps at most before it looks whether the wait is in vain.
  static std::chrono::nanoseconds max_sleep(Deadline until) {
    return std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(20), until.remaining());
  }

  // What next() does once a wait is long, for a transfer that nobody waits for all the time.

  /// Throws if the wait is in vain according to two calls in a row: what the awaited rank did before may have arrived
  /// by now. Returns whether it is according to this one.
  bool check();
  void goes_on() { long_wait_.goes_on(awaited_); }
  /// The deadline has passed. For a collective this breaks the group.
  [[noreturn]] void give_up();

 private:
  Pace after_spinning();
  [[noreturn]] void give_up_on_message();

  Engine& engine_;
  Call& call_;
  const Engine::Wait kind_;
  LongWait long_wait_;
  int awaited_ = -1;
  bool looks_again_ = false;
  Deadline::Clock::time_point sleeps_from_{};
};

}  // namespace cohort::shm
