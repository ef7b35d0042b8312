// SPDX-License-Identifier: BSD-3-Clause
//
// The kernels by kind of element, each family in a file of its own. Null for what a family does not have.
#pragma once

#include "reduce/kernels.h"

namespace cohort::reduce {

enum class Stores : bool { ordinary, streaming };

Kernel find_float_kernel(DType dtype, ReduceOp::Kind kind, Stores stores);
Kernel find_half_kernel(DType dtype, ReduceOp::Kind kind, Stores stores);
Kernel find_integer_kernel(DType dtype, ReduceOp::Kind kind, Stores stores);

}  // namespace cohort::reduce
