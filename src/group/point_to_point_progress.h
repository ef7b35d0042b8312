// SPDX-License-Identifier: BSD-3-Clause
//
// Sees asynchronous sends and receives through: one thread per group, started by the first of them, advances all that
// are under way, in no order, and rests while none moves.
#pragma once

#include <cohort/backend.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace cohort {

class PointToPointProgress {
 public:
  /// How a transfer ended: who sent it, or the error.
  using Done = std::function<void(int source, std::exception_ptr error)>;

  PointToPointProgress();
  /// Waits for all (each has its deadline). May be called on the p2p_progress's own thread.
  ~PointToPointProgress();
  PointToPointProgress(const PointToPointProgress&) = delete;
  PointToPointProgress& operator=(const PointToPointProgress&) = delete;

  /// `context`: for the error when it takes too long.
  void add(BackendPtr backend, std::unique_ptr<Transfer> transfer, const Call& call, ErrorContext context, Done done);
  /// Whether the caller is the p2p_progress's thread.
  bool is_own_thread() const;
  void wait_until_idle();

 private:
  struct Item {
    BackendPtr backend;
    std::unique_ptr<Transfer> transfer;
    Call call;
    ErrorContext context;
    Done done;
  };
  struct Core;

  std::shared_ptr<Core> core_;  // the thread's too: it may outlive this object by a moment
  std::thread thread_;
};

}  // namespace cohort
