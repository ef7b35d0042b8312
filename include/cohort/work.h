// SPDX-License-Identifier: BSD-3-Clause
//
// Work is what every operation of a process group returns: a handle to wait on and to ask.
//
//   auto work = pg->all_reduce(gradients, {.async_op = true});
//   compute();
//   work.wait();                       // throws what went wrong, each time it is called
//   work.wait(100ms);                  // OperationTimeoutError if it takes longer; the operation runs on
//   work.then([](const std::vector<cohort::Buffer>& outputs) { ... });
//
// Of device memory (operations.h) wait() has the operation's stream wait and not the host, unless it is a barrier;
// wait(timeout) blocks the host; is_completed() asks the device.
//
// Work is a value: copies are the same operation. Of an operation that was not asynchronous it is completed already.
//
// Dropping the last copy of an operation still running on memory it does not keep alive (a vector, a span, a pointer)
// waits for it, which its own deadline bounds; where the buffers hold a keep-alive it goes on unattended, and its
// error, if any, is logged. What was enqueued on the user's own stream (no async_op) is not waited for either: that
// memory is the stream's, as with any kernel.
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
#include <utility>
#include <vector>

namespace cohort {

namespace detail {
class WorkState;
class WorkHandle;
}  // namespace detail

class COHORT_API Work {
 public:
  /// Of nothing: completed.
  Work() = default;

  OpType op() const noexcept { return op_; }
  /// Of the operation in its group: collectives and point-to-point are counted apart, both from 1.
  std::uint64_t sequence() const noexcept { return sequence_; }

  /// Whether it has ended, with its result or with an error. Never blocks.
  bool is_completed() const;
  bool is_success() const { return is_completed() && exception() == nullptr; }
  /// Until the operation has ended, which its own deadline bounds; rethrows its error.
  void wait() const;
  /// As wait(), where another stream than the operation's is to wait: device memory that is used there next.
  void wait_on(void* stream) const;
  /// At most this long: an OperationTimeoutError afterwards, and the operation runs on.
  void wait(Timeout timeout) const;
  /// Null while it runs and when it went well.
  std::exception_ptr exception() const;
  /// Device memory: has the operation's stream wait for it. Host memory: nothing to order.
  void synchronize() const;
  /// How long the device took, where the backend was told to measure it and it has ended.
  std::optional<std::chrono::nanoseconds> duration() const;

  /// Who sent what a receive got; an Error for anything else, or before it has ended.
  int source_rank() const;

  /// The outputs, in order: the buffers reduced or broadcast; the gathered pieces; nothing for a barrier, a send, and
  /// a gather away from its root. An Error before completion.
  std::vector<Buffer> result() const;
  Future<std::vector<Buffer>> future() const;
  /// future().then(f): see future.h for where `f` runs.
  template <class F>
  auto then(F f) const {
    return future().then(std::move(f));
  }

 private:
  friend class detail::WorkState;
  friend struct WorkAccess;

  OpType op_ = OpType::unknown;
  int source_ = -1;
  std::uint64_t sequence_ = 0;
  // One output is the common case and is kept in place: a blocking operation allocates nothing.
  Buffer output_;
  std::vector<Buffer> outputs_;
  bool has_output_ = false;
  std::shared_ptr<detail::WorkHandle> handle_;  // null: completed
};

}  // namespace cohort
