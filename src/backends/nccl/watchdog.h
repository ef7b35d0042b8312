// SPDX-License-Identifier: BSD-3-Clause
//
// Watches what a group has enqueued on the device. One thread, started by the first operation, checks about ten times a
// second and whenever a deadline passes. It ends the operations that are done, which releases their memory. If one has
// missed its deadline, or NCCL reports an error, the group has failed: the other ranks are told, everything in progress
// ends with that failure, and the communicator is aborted. The same happens on ranks that are told
// (failure_coordinator.h). The process continues, and can make another group.
#pragma once

#include <cohort/deadline.h>

#include <memory>

#include "backends/common/failure_coordinator.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/enqueued.h"
#include "core/worker.h"

namespace cohort::nccl {

class Watchdog {
 public:
  /// The destructor waits until everything that is watched has ended. It may be called on the watchdog's own thread.
  Watchdog(CommunicatorPtr communicator, cuda::ContextPtr context, FailureCoordinator::Group group, Deadline deadline);

  /// Through which the ranks tell each other of failures.
  FailureCoordinator& coordinator();

  /// Costs a lock; the thread is woken only if the deadline comes before its next check.
  void watch(const EnqueuedPtr& operation);
  /// Waits until everything that is watched has ended, and returns whether it did before the deadline. On the
  /// watchdog's own thread it returns at once.
  bool drain(Deadline deadline);
  /// Carries out a failure that the coordinator has: first the communicator breaks, so that nobody starts anything new,
  /// then everything in progress ends, then what is on the device.
  void end();
  /// From now on end() does not abort the communicator, which is needed once more.
  void keep_communicator();

 private:
  struct Core;
  const std::shared_ptr<Core> core_;
  Worker worker_;
};

}  // namespace cohort::nccl
