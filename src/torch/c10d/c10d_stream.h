// SPDX-License-Identifier: BSD-3-Clause
//
// What operations of c10d on device memory need of libtorch: the streams that callers name, and how an operation that
// was enqueued is seen to end. c10d orders an operation on the current stream of the thread that issues it; here that
// stream is also made to wait for it at once, so that an event on the stream shows the end. With libtorch before 2.11,
// where a stream has no handle, device memory is refused.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <cohort/backend.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/common/group_status.h"

namespace cohort {

/// The streams of a device by their handles. Thread-safe.
class KnownStreams {
 public:
  explicit KnownStreams(c10::Device device) : device_(device) {}

  /// Remembers the current stream of this thread: callers name no other, but another thread may issue the operation.
  void note_current();
  /// Throws NotSupportedError for a stream that has not been the current one of a thread that called an operation.
  c10::Stream named(void* handle) const;

 private:
  const c10::Device device_;
  mutable std::mutex mutex_;
  std::map<void*, c10::Stream> streams_;
};

/// Operations that may still run on the device. Thread-safe.
class EnqueuedOperations {
 public:
  EnqueuedOperations(std::shared_ptr<const KnownStreams> streams, std::shared_ptr<GroupStatus> status)
      : streams_(std::move(streams)), status_(std::move(status)) {}

  /// Gives the call its completion: when what is on the stream now has ended. Throws NotSupportedError if the stream is
  /// being captured into a graph, which c10d's operations are then part of, but which nobody could see end.
  void add(const c10::Stream& stream, Call& call);
  /// Waits for all, and returns whether they ended before the deadline.
  bool drain(Deadline deadline);

 private:
  /// Ends those that the device has finished, since nobody may ask about them.
  void sweep();

  const std::shared_ptr<const KnownStreams> streams_;
  const std::shared_ptr<GroupStatus> status_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Completion>> operations_;
};

}  // namespace cohort
