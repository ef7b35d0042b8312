// SPDX-License-Identifier: BSD-3-Clause
//
// How a rank waits for another, and when it stops waiting.
//
// If every rank has a processor of its own, the waiter spins: the answer is usually less than a microsecond away, while
// waking a sleeper takes forty. If ranks outnumber processors, it yields at once, since the awaited rank may need this
// very processor; even a short spin costs more than the yield. In both cases a wait of more than a millisecond sleeps.
//
// During the wait the group may fail, a peer may die or leave, or the deadline may pass. None of these is checked while
// spinning (well under a millisecond), and a nap is short enough that all of them are noticed in time.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "backends/shm/engine.h"
#include "backends/shm/flags.h"

namespace cohort::shm {

class WaitMonitor {
 public:
  WaitMonitor(Engine& engine, Call& call) : engine_(engine), call_(call), long_wait_(engine.waiting()) {}

  void waits_for(int rank) {
    peer_ = rank;
    naps_from_ = {};
    looked_again_ = false;
  }

  Pace next(std::uint32_t round) {
    if (round == 0) call_.waits();
    if (round < engine_.policy().spins) return Pace::look;
    return after_spinning();
  }
  std::chrono::nanoseconds nap() const {
    return std::min<std::chrono::nanoseconds>(longest_nap, call_.deadline().remaining());
  }

 private:
  static constexpr std::chrono::milliseconds patience{1};
  static constexpr std::chrono::milliseconds longest_nap{20};

  Pace after_spinning();
  [[noreturn]] void give_up();

  Engine& engine_;
  Call& call_;
  LongWait long_wait_;
  int peer_ = -1;
  bool looked_again_ = false;
  Deadline::Clock::time_point naps_from_{};
};

}  // namespace cohort::shm
