// SPDX-License-Identifier: BSD-3-Clause
//
// What the tests of checkpoints of distributed tensors share.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/dtensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/bits.h"

namespace cohort::test {

using Sizes = std::vector<std::int64_t>;

inline constexpr CheckpointSaveOptions sharded{.sharded = true};

inline at::Tensor local_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor;
}

inline Checkpoint checkpoint_of(const std::vector<at::Tensor>& all) {
  Checkpoint checkpoint({.random_state = false});
  for (std::size_t i = 0; i < all.size(); ++i) checkpoint.add("t" + std::to_string(i), all[i]);
  return checkpoint;
}

}  // namespace cohort::test
