// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace cohort::hooks {

/// The columns of each matrix ([batch, rows, columns]) made orthonormal, in place. Gram–Schmidt for one or two columns
/// and for halves, which have no QR; its norms get `epsilon` added. Else QR.
void orthogonalize(const at::Tensor& matrices, double epsilon);

/// a b for batches of matrices. On the host halves are multiplied in float, since libtorch has no kernel for them.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b);

}  // namespace cohort::hooks
