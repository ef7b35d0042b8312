// SPDX-License-Identifier: BSD-3-Clause
//
// Which of our element types and reductions NCCL knows, and as what.
#pragma once

#include <cohort/dtype.h>
#include <cohort/reduce_op.h>

#include <array>
#include <cstddef>

#include "backends/nccl/engine_interface.h"

namespace cohort::nccl {

/// How a reduction is put to NCCL.
struct Reducing {
  DataType type{};
  std::size_t per_element = 1;  ///< 2 for complex numbers, which go as pairs of reals
  RedOp op{};                   ///< of a premul_sum: made for each call
};

/// A TypeError for an element type that NCCL does not reduce, a ValueError for a reduction it does not have.
Reducing reducing(DType dtype, const ReduceOp& op);

/// The factor of a premul_sum as one element of `type`, at the front.
std::array<std::byte, 8> scalar(DataType type, double factor);

}  // namespace cohort::nccl
