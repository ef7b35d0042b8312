// SPDX-License-Identifier: BSD-3-Clause
//
// Which of Cohort's element types and reductions NCCL supports, and how they map.
#pragma once

#include <cohort/dtype.h>
#include <cohort/reduce_op.h>

#include <array>
#include <cstddef>

#include "backends/nccl/engine_interface.h"

namespace cohort::nccl {

/// How a reduction is expressed in NCCL.
struct Reducing {
  DataType type{};
  std::size_t per_element = 1;  ///< 2 for complex numbers, which are reduced as pairs of reals
  RedOp op{};                   ///< for premul_sum it is created for each call
};

/// Throws TypeError for an element type that NCCL does not reduce, and ValueError for a reduction it does not have.
Reducing reducing(DType dtype, const ReduceOp& op);

/// The factor of a premul_sum as one element of `type`, in the first bytes.
std::array<std::byte, 8> scalar(DataType type, double factor);

}  // namespace cohort::nccl
