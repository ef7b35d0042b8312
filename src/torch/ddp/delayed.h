// SPDX-License-Identifier: BSD-3-Clause
//
// Parameters that are reduced together, apart from the buckets, once the gradient of another parameter is there: for
// gradients that the user adds to by hand.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/ddp/accumulation_hook.h"

namespace cohort::ddp {

class Delayed {
 public:
  /// Their gradients are parts of one row of memory from now on. All of one type and on one device.
  Delayed(ProcessGroupPtr group, std::vector<at::Tensor> parameters, const at::Tensor& trigger);
  /// After each forward: gradients that were dropped are zeros again.
  void attach_gradients();
  const std::vector<at::Tensor>& parameters() const { return shared_->parameters; }
  void set_sync(bool syncs) { shared_->syncs = syncs; }
  /// Gradients move into memory of this one.
  void set_group(ProcessGroupPtr group);

 private:
  /// What the hook sees, which may run when its owner is gone.
  struct Shared {
    ProcessGroupPtr group{};
    std::vector<at::Tensor> parameters{};
    at::Tensor flat{};
    std::vector<at::Tensor> views{};  ///< one for each parameter
    bool syncs = true;

    /// All gradients into the row; those that there are not are zeros.
    void collect() const;
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::optional<AccumulationHook> hook_;
};

}  // namespace cohort::ddp
