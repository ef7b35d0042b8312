// SPDX-License-Identifier: BSD-3-Clause
//
// How a reduction of Cohort's is put to MPI: as MPI's own where that means the same, else as an operation of ours.
#pragma once

#include <cohort/backend.h>

#include <cstddef>

#include "backends/mpi/runtime.h"

namespace cohort::mpi {

struct MpiReduction {
  Element element = Element::f32;
  std::size_t width = 4;      ///< of one of MPI's elements
  std::size_t per_value = 1;  ///< of them: two in a complex number
  bool is_wide = false;       ///< halves that travel as floats
  Op op = Op::sum;            ///< MPI's, unless there is:
  Combine combine = nullptr;  ///< ours
  std::size_t own_index = 0;

  Op op_in(Runtime& runtime) const { return combine == nullptr ? op : runtime.own_op(own_index, combine); }
};

/// avg and premul_sum are sums here: dividing and multiplying is done before and after.
MpiReduction mpi_reduction_for(DType dtype, ReduceOp::Kind kind);

}  // namespace cohort::mpi
