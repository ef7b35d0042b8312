// SPDX-License-Identifier: BSD-3-Clause
//
// What is behind a Work that was not completed when it was returned.
#pragma once

#include <cohort/completion.h>
#include <cohort/work.h>

#include <atomic>
#include <memory>
#include <vector>

#include "group/submit.h"

namespace cohort {

namespace detail {

/// Shared by whoever runs the operation and whoever holds a Work of it.
class WorkState {
 public:
  WorkState(const Operation& op, std::shared_ptr<Executor> executor)
      : operation_(std::in_place, op), future_(std::make_shared<Future>(std::move(executor))) {}

  /// Valid until it has ended.
  const OwnedOperation& operation() const { return *operation_; }

  void succeed(int source);
  void fail(std::exception_ptr error);

  bool is_done() const {
    // Whoever sees first that the device is through ends the operation.
    if (completion_ != nullptr && !future_->is_done()) completion_->is_done();
    return future_->is_done();
  }
  /// Blocks the host.
  bool wait(Deadline deadline) const {
    if (completion_ != nullptr && !future_->is_done() && !completion_->wait(deadline)) return false;
    return future_->wait(deadline);
  }
  /// What happens on a device, ordered on `stream`. Called before anybody else has the state.
  void set_completion(std::shared_ptr<Completion> completion, void* stream) {
    completion_ = std::move(completion);
    stream_ = stream;
  }
  /// Of device memory: its stream waits for it; throws an error known by now. False where there is no stream to wait.
  bool order() const { return order(stream_); }
  bool order(void* stream) const {
    if (completion_ == nullptr) return false;
    if (future_->is_done() && future_->error()) std::rethrow_exception(future_->error());
    completion_->order(stream);
    return true;
  }
  std::optional<std::chrono::nanoseconds> duration() const {
    return completion_ == nullptr ? std::nullopt : completion_->duration();
  }
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
  std::shared_ptr<Completion> completion_;
  void* stream_ = nullptr;
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
  static Work completed(const Operation& op, std::uint64_t sequence, int source);
  static Work pending(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state);
  /// Enqueued; `is_borrowed`: dropping it must wait.
  static Work enqueued(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state, bool is_borrowed);
};

}  // namespace cohort
