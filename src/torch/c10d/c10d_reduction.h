// SPDX-License-Identifier: BSD-3-Clause
//
// How a reduction is done with the types and the reductions that c10d's backends have.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/operation.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace cohort {

struct C10dReduction {
  at::ScalarType type{};  ///< of the tensors; a complex number is two elements
  c10d::ReduceOp::RedOpType op{};
  double factor = 1;   ///< of this rank's values, before the reduction
  double divisor = 1;  ///< of the result

  void before(const at::Tensor& values) const;
  void after(const at::Tensor& result) const;
};

/// Throws NotSupportedError for what c10d has no type for. `has_avg`: the backend averages by itself.
C10dReduction c10d_reduction(const Operation& op, int ranks, bool has_avg);

}  // namespace cohort
