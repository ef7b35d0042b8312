// SPDX-License-Identifier: BSD-3-Clause
//
// Every operation of a process group returns a Work: a handle to wait for the operation and to query it.
//
//   auto work = pg->all_reduce(gradients, {.async_op = true});
//   compute();
//   work.wait();                       // throws the operation's error, on every call
//   work.wait(100ms);                  // OperationTimeoutError if it takes longer; the operation continues
//   work.then([](const std::vector<cohort::Buffer>& outputs) { ... });
//
// For device memory (operations.h), wait() makes the operation's stream wait, and blocks the host only for a barrier.
// wait(timeout) blocks the host, and is_completed() queries the device.
//
// Work is a value; its copies refer to the same operation. The Work of an operation that was not asynchronous is
// already completed.
//
// Destroying the last copy while the operation still runs on memory that it does not keep alive (a vector, a span, a
// pointer) waits for the operation; its deadline bounds the wait. If the buffers have a keep-alive, the operation
// continues and its error, if any, is logged. An operation that was enqueued on the user's own stream (without
// async_op) is not waited for either: as with any kernel, the memory must stay valid until the stream has used it.
#pragma once

#include <cohort/buffer.h>
#include <cohort/export.h>
#include <cohort/future.h>
#include <cohort/op_type.h>
#include <cohort/timeout.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cohort {

namespace detail {
class WorkState;
class WorkHandle;
}  // namespace detail

class COHORT_API Work {
 public:
  /// A completed Work with no operation.
  Work() = default;

  OpType op() const noexcept { return op_; }
  /// The operation's sequence number in its group. Collectives and point-to-point operations are counted separately,
  /// both from 1.
  std::uint64_t sequence() const noexcept { return sequence_; }

  /// Whether the operation has ended, with success or with an error. Never blocks.
  bool is_completed() const;
  bool is_success() const { return is_completed() && exception() == nullptr; }
  /// Waits until the operation has ended and throws its error, if any. The operation's deadline bounds the wait.
  void wait() const;
  /// Like wait(), but makes `stream` wait instead of the operation's stream, for device memory that is used there next.
  void wait_on(void* stream) const;
  /// Waits at most this long, then throws OperationTimeoutError. The operation continues.
  void wait(Timeout timeout) const;
  /// Whether both are handles of one asynchronous operation.
  bool is_same_operation(const Work& other) const noexcept { return handle_ != nullptr && handle_ == other.handle_; }
  /// The operation's error; null while it runs and if it succeeded.
  std::exception_ptr exception() const;
  /// For device memory, makes the operation's stream wait for the operation. For host memory, does nothing.
  void synchronize() const;
  /// How long the device took. nullopt if the operation has not ended or the backend was not told to measure it.
  std::optional<std::chrono::nanoseconds> duration() const;

  /// The rank that sent what a receive received. Throws Error for other operations, and before the receive has ended.
  int source_rank() const;

  /// The outputs in order: the buffers that were reduced or broadcast, or the gathered pieces. Empty for a barrier, for
  /// a send, and for a gather on ranks other than the root. Throws Error before completion.
  std::vector<Buffer> result() const;
  /// In a step that is being captured (torch/capture.h), and under every other IssueObserver that sees waits, this
  /// waits until the operation has ended, so that continuations run on this thread and are seen as well.
  Future<std::vector<Buffer>> future() const;
  /// Same as future().then(f). See future.h for the thread that `f` runs on.
  template <class F>
  auto then(F f) const {
    return future().then(std::move(f));
  }

 private:
  Work(OpType op, std::uint64_t sequence, int source, std::span<const Buffer> outputs)
      : op_(op), source_(source), sequence_(sequence) {
    if (outputs.size() == 1) {
      output_.emplace(outputs[0]);
    } else if (!outputs.empty()) {
      outputs_.assign(outputs.begin(), outputs.end());
    }
  }

  void wait_unobserved() const;
  Future<std::vector<Buffer>> unobserved_future() const;
  friend class detail::WorkState;
  friend struct WorkAccess;

  OpType op_ = OpType::unknown;
  int source_ = -1;
  std::uint64_t sequence_ = 0;
  // One output is the common case and is stored inline, so that a blocking operation does not allocate.
  std::optional<Buffer> output_;
  std::vector<Buffer> outputs_;
  std::shared_ptr<detail::WorkHandle> handle_;  // null: completed
};

}  // namespace cohort
