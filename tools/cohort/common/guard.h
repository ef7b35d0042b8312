// SPDX-License-Identifier: BSD-3-Clause
//
// A second process that outlives the launcher by a moment: when the launcher ends without having said so, even by
// kill -9, it kills the process groups of the ranks, and then the processes that have left these groups (setsid) but
// still have the guard's mark in their environment. The kernel's parent-death signal reaches the ranks themselves, but
// not what they have started.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/file_descriptor.h"

namespace cohort::tool {

class Guard {
 public:
  /// Forks; the process must not have threads yet.
  Guard();
  /// Ends the second process, which then kills nothing.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// NAME=value, with a value that no other guard has: for the environment of the ranks.
  const std::string& mark() const { return mark_; }

  /// The descriptor for announce().
  int channel() const { return channel_.get(); }
  /// Called by the rank itself between fork and exec, so that there is no moment in which the guard does not know it.
  static void announce(int channel, pid_t group) noexcept;
  void forget(pid_t group) const noexcept;

 private:
  std::string mark_;
  FileDescriptor channel_;
  pid_t pid_ = -1;
};

}  // namespace cohort::tool
