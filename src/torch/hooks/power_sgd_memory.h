// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/power_sgd.h>

#include <cstddef>

namespace cohort {

/// What PowerSGD keeps for a bucket from one step to the next; undefined until it is first used.
struct PowerSgdMemory {
  at::Tensor error{};  ///< flat: what the approximations have left out so far
  at::Tensor p{};      ///< all P of the bucket in one row
  at::Tensor q{};

  /// For tests.
  static const PowerSgdMemory& of(const PowerSgdState& state, std::size_t bucket) {
    return *state.memories_.at(bucket);
  }
};

}  // namespace cohort
