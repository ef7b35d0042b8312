// SPDX-License-Identifier: BSD-3-Clause
//
// Looks after what a group has on the device: one thread, started by the first operation. About ten times a second, and
// when a deadline comes, it ends what is through (which lets its memory go), and where an operation missed its deadline
// or NCCL reports an error it breaks the group: everything under way ends with that error, and the communicator is
// aborted. The process goes on, and can make another group.
#pragma once

#include <cohort/deadline.h>

#include <exception>
#include <memory>
#include <thread>

#include "backends/nccl/communicator.h"
#include "backends/nccl/enqueued.h"

namespace cohort::nccl {

class Watchdog {
 public:
  Watchdog(CommunicatorPtr communicator, cuda::ContextPtr context);
  /// Everything it watches has ended by then. May be called on its own thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Costs a lock; its thread is woken only where the deadline comes before it would look anyway.
  void watch(EnqueuedPtr operation);
  /// Until all that is watched has ended. Not on its own thread, where it returns at once.
  void drain();
  /// Breaks the group: the communicator first, so that nobody begins anew, then all that is under way, then the device.
  void fail(const std::exception_ptr& error, bool aborts = true);

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // the thread's too: it may outlive this object by a moment
  std::thread thread_;          // under the core's mutex
};

}  // namespace cohort::nccl
