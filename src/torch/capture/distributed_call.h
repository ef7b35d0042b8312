// SPDX-License-Identifier: BSD-3-Clause
//
// Calls on distributed tensors that a captured step shows as one node each.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "torch/capture/recorder.h"

namespace cohort::recording {

/// While it exists, what this thread does belongs to one call on the tensor. Costs a look at thread-local state if no step
/// is being recorded.
class DistributedCallScope {
 public:
  /// `constants` makes the operands that are no tensors.
  template <class Constants>
  DistributedCallScope(const char* name, const at::Tensor& tensor, const Constants& constants)
      : recorder_(Recorder::active()) {
    if (recorder_ != nullptr) [[unlikely]] {
      recorder_->begin_distributed_call({.name = name, .constants = constants()}, tensor);
    }
  }
  ~DistributedCallScope() {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->end_distributed_call();
  }
  DistributedCallScope(const DistributedCallScope&) = delete;
  DistributedCallScope& operator=(const DistributedCallScope&) = delete;

 private:
  Recorder* recorder_;
};

}  // namespace cohort::recording
