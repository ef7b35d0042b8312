// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace cohort::hooks {

/// Makes the columns of each matrix ([batch, rows, columns]) orthonormal, in place: by Gram–Schmidt, which adds
/// `epsilon` to its norms, for one or two columns and for half precision, which has no QR, and otherwise by QR.
void orthogonalize(const at::Tensor& matrices, double epsilon);

/// The products of two batches of matrices. On the host, half precision is multiplied in float, since libtorch has no
/// kernel for it.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b);

}  // namespace cohort::hooks
