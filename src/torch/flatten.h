// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace cohort {

/// The elements of all tensors, which have one dtype and device, in a new tensor of one dimension.
inline at::Tensor flattened(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const auto& each : tensors) rows.push_back(each.detach().reshape({-1}));
  return at::cat(rows);
}

/// The reverse: copies the parts of `flat` into the tensors. To be called without gradients.
inline void copy_from_flat(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  std::int64_t offset = 0;
  for (const auto& each : tensors) {
    each.copy_(flat.narrow(0, offset, each.numel()).view(each.sizes()));
    offset += each.numel();
  }
}

}  // namespace cohort
