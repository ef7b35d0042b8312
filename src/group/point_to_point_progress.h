// SPDX-License-Identifier: BSD-3-Clause
//
// Progress of asynchronous sends and receives. One thread per group, started by the first transfer, advances all
// transfers in no particular order, and rests while none of them makes progress.
#pragma once

#include <cohort/backend.h>

#include <functional>
#include <memory>

#include "core/worker.h"

namespace cohort {

class PointToPointProgress {
 public:
  /// Called when a transfer has ended, with the sender's rank or with the error.
  using Done = std::function<void(int source, std::exception_ptr error)>;

  /// The destructor waits for all transfers; their deadlines bound the wait. It may be called on the progress thread.
  PointToPointProgress();

  /// `context` is the context of the error that is reported if the transfer misses its deadline; `is_awaited` tells
  /// whether a thread waits for its end.
  void add(BackendPtr backend, std::unique_ptr<Transfer> transfer, const Call& call, ErrorContext context,
           std::function<bool()> is_awaited, Done done);
  /// Whether the caller is the progress thread.
  bool is_own_thread() const { return worker_.is_current(); }
  /// Waits until no transfer is in progress, and returns whether that was before the deadline.
  bool wait_until_idle(Deadline deadline = Deadline::never());

 private:
  struct Item {
    BackendPtr backend;
    std::unique_ptr<Transfer> transfer;
    Call call;
    ErrorContext context;
    std::function<bool()> is_awaited;
    Done done;
  };
  struct Core;

  const std::shared_ptr<Core> core_;
  Worker worker_;
};

}  // namespace cohort
