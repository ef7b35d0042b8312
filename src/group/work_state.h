// SPDX-License-Identifier: BSD-3-Clause
//
// The state behind a Work that was not completed when it was returned.
#pragma once

#include <cohort/completion.h>
#include <cohort/work.h>

#include <atomic>
#include <memory>
#include <vector>

#include "group/collective_queue.h"
#include "group/submit.h"

namespace cohort {

namespace detail {

/// Shared by the thread that runs the operation and the holders of its Work.
class WorkState {
 public:
  WorkState(const Operation& op, std::shared_ptr<Executor> executor)
      : operation_(std::in_place, op), future_(std::make_shared<Future>(std::move(executor))) {}

  /// Valid until the operation has ended.
  const OwnedOperation& operation() const { return *operation_; }

  void succeed(int source);
  void fail(std::exception_ptr error);

  bool is_done() const {
    // The first thread to see that the device has finished ends the operation.
    if (completion_ != nullptr && !future_->is_done()) completion_->is_done();
    return future_->is_done();
  }
  /// Blocks the host.
  bool wait(Deadline deadline) const {
    if (completion_ != nullptr && !future_->is_done() && !completion_->wait(deadline)) return false;
    return future_->wait(deadline);
  }
  /// For operations that wait in a queue. Must be called before the state is shared.
  void set_queue(std::shared_ptr<QueueHelper> queue) { queue_ = std::move(queue); }
  /// Waits without a limit of its own, and performs the operation on this thread if nobody has begun it.
  void wait_or_perform(std::uint64_t sequence) const {
    if (queue_ != nullptr && !future_->is_done()) queue_->help_until(sequence);
    wait(Deadline::never());
  }
  /// For operations that a device performs, ordered on `stream`. Must be called before the state is shared.
  void set_completion(std::shared_ptr<Completion> completion, void* stream) {
    completion_ = std::move(completion);
    stream_ = stream;
  }
  /// For device memory: makes the stream wait for the operation, or throws its error if that is already known. Returns
  /// false for host memory, where there is no stream.
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
  /// Only valid after the operation has ended.
  const std::exception_ptr& error() const { return future_->error(); }
  const std::vector<Buffer>& outputs() const { return future_->value(); }
  int source() const { return source_.load(std::memory_order_acquire); }

  using Future = FutureState<std::vector<Buffer>>;
  const std::shared_ptr<Future>& future() const { return future_; }

 private:
  std::optional<OwnedOperation> operation_;
  std::shared_ptr<Future> future_;
  std::atomic<int> source_{-1};
  std::shared_ptr<QueueHelper> queue_;
  std::shared_ptr<Completion> completion_;
  void* stream_ = nullptr;
};

/// Shared by all copies of a Work. The last copy waits for the operation if the memory is borrowed.
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

/// Makes Work objects.
struct WorkAccess {
  static Work completed(const Operation& op, std::uint64_t sequence, int source) {
    return {op.type, sequence, source, op.output_buffers};
  }
  static Work pending(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state);
  /// For operations that are enqueued on a stream. If `is_borrowed` is true, destroying the last copy waits.
  static Work enqueued(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state, bool is_borrowed);
  /// Never waits, also in the scope of an IssueObserver.
  static Future<std::vector<Buffer>> unobserved_future(const Work& work);
};

}  // namespace cohort
