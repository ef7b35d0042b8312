// SPDX-License-Identifier: BSD-3-Clause
//
// How a reduction of Cohort is done with MPI: with an operation of MPI if that means the same, and with one of Cohort's
// own otherwise. What MPI cannot do with the elements is done before and after the call (reductions.cpp).
#pragma once

#include <cohort/backend.h>

#include <cstddef>

#include "backends/mpi/runtime.h"

namespace cohort::mpi {

struct MpiReduction {
  Element element = Element::f32;
  std::size_t width = 4;      ///< bytes of one of MPI's elements
  std::size_t per_value = 1;  ///< elements of MPI in one value: two in a complex number
  bool is_wide = false;       ///< f16 or bf16, sent as floats
  Op op = Op::sum;            ///< MPI's own, used if `combine` is null
  Combine combine = nullptr;  ///< our operation
  std::size_t own_index = 0;

  Op op_in(Runtime& runtime) const { return combine == nullptr ? op : runtime.own_op(own_index, combine); }
};

/// avg and premul_sum are sums here: the caller multiplies before and divides after.
MpiReduction mpi_reduction_for(DType dtype, ReduceOp::Kind kind);

// MPI knows neither f16 nor bf16, and adding them up two at a time would round at every step where Cohort promises to
// round once: they are reduced as floats. The conversion takes about a nanosecond per element, less than the network.

/// `dtype` is f16 or bf16. The halves need not be aligned.
void widen(DType dtype, const void* halves, float* floats, std::size_t count);
/// Rounds to nearest, ties to even.
void narrow(DType dtype, const float* floats, void* halves, std::size_t count);

}  // namespace cohort::mpi
