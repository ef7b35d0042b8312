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
  /// Their gradients are parts of one row of memory from now on.
  Delayed(ProcessGroupPtr group, std::vector<std::pair<std::string, at::Tensor>> parameters, const at::Tensor& trigger);
  /// After each forward: gradients that were dropped are zeros again.
  void attach_gradients();
  std::vector<at::Tensor> parameters() const;
  void set_sync(bool syncs) { *syncs_ = syncs; }

 private:
  ProcessGroupPtr group_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
  std::optional<AccumulationHook> hook_;
  std::shared_ptr<bool> syncs_ = std::make_shared<bool>(true);
};

}  // namespace cohort::ddp
