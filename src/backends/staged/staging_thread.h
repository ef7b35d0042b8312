// SPDX-License-Identifier: BSD-3-Clause
//
// Moves a group's staged ops on: one thread, started by the first. They leave in the order in which they were begun, so
// that collectives meet in issue order; they come back as they are through, so that a receive may wait for a send that
// was begun after it.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "backends/staged/staged_op.h"

namespace cohort::staged {

class StagingThread {
 public:
  /// `on_stuck`: a op failed before it left, and the others of the group may be waiting for it.
  explicit StagingThread(std::function<void(const std::exception_ptr&)> on_stuck);
  /// Waits for what is under way, which deadlines bound.
  ~StagingThread();
  StagingThread(const StagingThread&) = delete;
  StagingThread& operator=(const StagingThread&) = delete;

  void add(StagedOpPtr op);
  /// Until all have ended. On its own thread it returns at once.
  void drain();
  /// Those that have not left fail with `error`, and those that come later.
  void close(const std::exception_ptr& error);

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // the thread's too: it may outlive this object by a moment
  std::thread thread_;          // under the core's mutex
};

}  // namespace cohort::staged
