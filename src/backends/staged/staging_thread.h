// SPDX-License-Identifier: BSD-3-Clause
//
// Advances a group's staged operations, on one thread that the first of them starts. They are handed to the host's
// group in the order in which they were issued, so that collectives match on all ranks; their results are copied back
// as they complete, so that a receive may wait for a send that was issued after it.
#pragma once

#include <exception>
#include <functional>
#include <memory>

#include "backends/staged/staged_op.h"
#include "core/worker.h"

namespace cohort::staged {

class StagingThread {
 public:
  /// `on_stuck` is called if an operation failed before it reached the host's group, where the other ranks may be
  /// waiting for it. The destructor waits for what is in progress, which the operations' deadlines bound.
  explicit StagingThread(std::function<void(const std::exception_ptr&)> on_stuck);

  void add(StagedOpPtr op);
  /// Waits until all operations have ended, and returns whether they did before the deadline. On the staging thread
  /// itself it returns at once.
  bool drain(Deadline deadline);
  /// Makes operations that have not reached the host's group, now or later, fail with `error`.
  void close(const std::exception_ptr& error);

 private:
  struct Core;
  const std::shared_ptr<Core> core_;
  Worker worker_;
};

}  // namespace cohort::staged
