// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "torch/compat/memory_total.h"

namespace cohort::benchmarks {

/// While it exists, counts the bytes that this thread and the autograd engine on its behalf allocate from libtorch's
/// allocators, less those that they give back.
class PeakMemory {
 public:
  PeakMemory() : counter_(std::make_shared<Counter>()), scope_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

  /// The most that was held at once, beyond what was held in the beginning.
  std::int64_t peak() const { return counter_->peak; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*memory*/, std::int64_t bytes, MemoryTotal /*allocated*/, MemoryTotal /*reserved*/,
                           c10::Device /*device*/) override {
      held += bytes;
      peak = std::max(peak, held);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t held = 0;
    std::int64_t peak = 0;
  };

  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard scope_;
};

}  // namespace cohort::benchmarks
