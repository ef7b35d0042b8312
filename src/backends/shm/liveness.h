// SPDX-License-Identifier: BSD-3-Clause
//
// Whether the other ranks still live. Each rank finds out by itself: a pidfd becomes readable when its process has
// ended, however it ended, and cannot be fooled by a pid that is used again.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <poll.h>

#include "core/file_descriptor.h"

namespace cohort::shm {

class Liveness {
 public:
  /// Watches nobody: for ranks that are threads of one process.
  Liveness() = default;
  /// One process per rank; `own` is not watched. A process that is gone already counts as dead. BackendError where the
  /// kernel has no pidfds or there are no file descriptors left.
  Liveness(std::span<const pid_t> pids, int own);

  /// Ranks found dead now; each is reported at every call. One system call.
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
