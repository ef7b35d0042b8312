// SPDX-License-Identifier: BSD-3-Clause
//
// Device memory of fake groups. What is copied is enqueued on the stream of the call, as an engine would do, so that it
// can also be captured into a graph; what is computed passes through the host, which waits for it.
#pragma once

#include <cohort/backend.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "backends/cuda/objects.h"

namespace cohort::fake {

class DeviceMemory {
 public:
  explicit DeviceMemory(const cuda::Driver& driver) : driver_(driver) {}

  /// Enqueues a copy of device memory.
  void copy(Bytes to, ConstBytes from, const Operation& op, const Call& call);
  /// Enqueues `out` = `compute(in)`, where `compute` gets host memory, and waits until it is done.
  void apply(const std::function<void(ConstBytes in, Bytes out)>& compute, ConstBytes in, Bytes out,
             const Operation& op, Call& call);
  /// Waits until what was enqueued on the stream of the call is done. Returns at once if it is being captured.
  void wait(const Operation& op, Call& call);

 private:
  /// The context of the device that the operation's memory is on.
  cuda::ContextPtr context_of(const Operation& op);
  bool is_capturing(const Call& call) const;
  void wait(const cuda::ContextPtr& context, Call& call) const;

  const cuda::Driver& driver_;
  std::mutex mutex_;
  std::vector<cuda::ContextPtr> contexts_;  ///< those in use so far; protected by mutex_
};

}  // namespace cohort::fake
