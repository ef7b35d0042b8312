// SPDX-License-Identifier: BSD-3-Clause
//
// How a rank waits for MPI, which moves nothing unless it is called: by asking again and again.
//
// Where every rank has a processor of its own it asks without a pause; where ranks outnumber processors it yields each
// time, since the one it waits for may need this very processor. A wait that has become long naps between two looks,
// for 100 us at most; how long is long depends on the size of the operation, because data moves in pieces, and each
// piece would wait for the end of a nap.
#pragma once

#include <cohort/deadline.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace cohort::mpi {

class Waiting {
 public:
  Waiting(bool own_cpus, std::size_t bytes) : own_cpus_(own_cpus), bytes_(bytes) {}

  /// Whether to ask again at once; otherwise the clock, and what else may have changed, is to be looked at first.
  bool is_spinning() noexcept { return own_cpus_ && round_++ < spins; }

  void pause(Deadline::Clock::time_point now, Deadline deadline) {
    if (naps_from_ == Deadline::Clock::time_point{}) naps_from_ = now + patience();
    if (now < naps_from_) {
      if (!own_cpus_) ::sched_yield();
      return;
    }
    std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(nap_, deadline.remaining()));
    nap_ = std::min<std::chrono::microseconds>(2 * nap_, longest_nap);
  }

 private:
  static constexpr std::uint32_t spins = 2000;  // some 200 us: less than any deadline is exact to
  static constexpr std::chrono::microseconds longest_nap{100};

  /// A millisecond, and what the bytes take at 100 MB/s.
  std::chrono::microseconds patience() const {
    return std::chrono::milliseconds(1) + std::chrono::microseconds(bytes_ / 100);
  }

  const bool own_cpus_;
  const std::size_t bytes_;
  std::uint32_t round_ = 0;
  std::chrono::microseconds nap_{10};
  Deadline::Clock::time_point naps_from_{};
};

}  // namespace cohort::mpi
