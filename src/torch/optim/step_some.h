// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

namespace cohort {

/// Steps these parameters of the optimizer alone. An optimizer steps the parameters in its groups and keeps state by
/// parameter, so for this step the groups list these parameters only.
inline void step_some(torch::optim::Optimizer& optimizer, std::span<const at::Tensor> parameters) {
  std::unordered_set<c10::TensorImpl*> wanted;
  for (const auto& each : parameters) wanted.insert(each.unsafeGetTensorImpl());
  auto& groups = optimizer.param_groups();
  std::vector<std::vector<at::Tensor>> lists;
  for (auto& each : groups) {
    lists.push_back(each.params());
    std::erase_if(each.params(), [&](const at::Tensor& x) { return !wanted.contains(x.unsafeGetTensorImpl()); });
  }
  const auto restore = [&] {
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].params() = std::move(lists[i]);
  };
  try {
    optimizer.step();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

}  // namespace cohort
