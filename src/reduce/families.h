// SPDX-License-Identifier: BSD-3-Clause
//
// The kernels for each family of element types, each in a file of its own. The functions return null for reductions
// that the family does not have.
#pragma once

#include "reduce/kernels.h"

namespace cohort::reduce {

enum class Stores : bool { ordinary, streaming };

Kernel find_float_kernel(DType dtype, ReduceOp::Kind kind, Stores stores);
Kernel find_half_kernel(DType dtype, ReduceOp::Kind kind, Stores stores);
Kernel find_integer_kernel(DType dtype, ReduceOp::Kind kind, Stores stores);

}  // namespace cohort::reduce
