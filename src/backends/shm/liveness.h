// SPDX-License-Identifier: BSD-3-Clause
//
// Whether the other ranks are still alive. Each rank detects this by itself: a pidfd becomes readable when its process
// has ended, in whatever way, and is not deceived by a pid that is reused.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <poll.h>

#include "core/file_descriptor.h"

namespace cohort::shm {

class Liveness {
 public:
  /// Watches no process: for ranks that are threads of one process.
  Liveness() = default;
  /// One process per rank; the process of `own` is not watched. A process that has ended already counts as dead. Throws
  /// BackendError if the kernel has no pidfds or there are no file descriptors left.
  Liveness(std::span<const pid_t> pids, int own);

  /// The ranks that are dead now; a dead rank is reported by every call. Costs one system call.
  std::vector<int> dead();
  bool is_dead(int rank);

 private:
  struct Watched {
    int rank;
    FileDescriptor fd;
  };
  std::vector<Watched> watched_;
  std::vector<int> gone_;
};

}  // namespace cohort::shm
