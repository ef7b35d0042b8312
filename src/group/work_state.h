// SPDX-License-Identifier: BSD-3-Clause
//
// What is behind a Work that was not completed when it was returned.
#pragma once

#include <cohort/work.h>

#include <atomic>
#include <memory>
#include <vector>

#include "group/operation.h"

namespace cohort {

namespace detail {

/// Shared by whoever runs the operation and whoever holds a Work of it.
class WorkState {
 public:
  WorkState(const Operation& operation, std::shared_ptr<Executor> executor)
      : operation_(std::in_place, operation), future_(std::make_shared<Future>(std::move(executor))) {}

  /// Valid until it has ended.
  const OwnedOperation& operation() const { return *operation_; }

  void succeed(int source);
  void fail(std::exception_ptr error);

  bool is_done() const { return future_->is_done(); }
  bool wait(Deadline deadline) const { return future_->wait(deadline); }
  /// After it has ended.
  const std::exception_ptr& error() const { return future_->error(); }
  const std::vector<Buffer>& outputs() const { return future_->value(); }
  int source() const { return source_.load(std::memory_order_acquire); }

  using Future = FutureState<std::vector<Buffer>>;
  const std::shared_ptr<Future>& future() const { return future_; }

 private:
  std::optional<OwnedOperation> operation_;
  std::shared_ptr<Future> future_;
  std::atomic<int> source_{-1};
};

/// Held by the copies of a Work together: the last one waits, if the memory is borrowed.
class WorkHandle {
 public:
  WorkHandle(std::shared_ptr<WorkState> state, bool is_borrowed)
      : state_(std::move(state)), is_borrowed_(is_borrowed) {}
  ~WorkHandle();
  WorkHandle(const WorkHandle&) = delete;
  WorkHandle& operator=(const WorkHandle&) = delete;

  WorkState& state() const { return *state_; }

 private:
  std::shared_ptr<WorkState> state_;
  bool is_borrowed_;
};

}  // namespace detail

/// Makes Works.
struct WorkAccess {
  static Work completed(const detail::Operation& operation, std::uint64_t sequence, int source);
  static Work pending(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state);
};

}  // namespace cohort
