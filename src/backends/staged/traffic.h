// SPDX-License-Identifier: BSD-3-Clause
//
// Moves a group's journeys on: one thread, started by the first. They leave in the order in which they were begun, so
// that collectives meet in issue order; they come back as they are through, so that a receive may wait for a send that
// was begun after it.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "backends/staged/journey.h"

namespace cohort::staged {

class Traffic {
 public:
  /// `on_stuck`: a journey failed before it left, and the others of the group may be waiting for it.
  explicit Traffic(std::function<void(const std::exception_ptr&)> on_stuck);
  /// Waits for what is under way, which deadlines bound.
  ~Traffic();
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  void add(JourneyPtr journey);
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
