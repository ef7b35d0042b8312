// SPDX-License-Identifier: BSD-3-Clause
//
// The delayed reduction: parameters that are reduced together, apart from the buckets, once the gradient of another
// parameter is there. It is for gradients that the user adds to by hand.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <memory>
#include <optional>
#include <vector>

#include "torch/accumulation_hook.h"

namespace cohort::ddp {

class DelayedReduction {
 public:
  /// The parameters have one dtype and one device. From now on their gradients are parts of one flat tensor.
  DelayedReduction(ProcessGroupPtr process_group, std::vector<at::Tensor> parameters, const at::Tensor& trigger);
  /// After each forward: gradients that were dropped become zeros again.
  void attach_gradients();
  const std::vector<at::Tensor>& parameters() const { return shared_->parameters; }
  void set_sync(bool syncs) { shared_->syncs = syncs; }
  /// Moves the gradients into memory of another group.
  void set_process_group(ProcessGroupPtr process_group);

 private:
  /// Shared with the hook, which may run after its owner is gone.
  struct Shared {
    ProcessGroupPtr group{};
    std::vector<at::Tensor> parameters{};
    at::Tensor flat{};
    std::vector<at::Tensor> views{};  ///< one for each parameter
    bool syncs = true;

    /// Puts all gradients into `flat`, and zeros for those that do not exist.
    void collect() const;
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::optional<AccumulationHook> hook_;
};

}  // namespace cohort::ddp
