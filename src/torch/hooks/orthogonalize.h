// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cohort::hooks {

/// Makes the columns of each matrix ([batch, rows, columns]) orthonormal, in place: by Gram–Schmidt for one or two
/// columns and for half precision, which has no QR, and otherwise by QR. Gram–Schmidt makes columns zero that are
/// combinations of those before them, and then shortens each by norm / (norm + epsilon).
void orthogonalize(const at::Tensor& matrices, double epsilon);

/// Gives columns that are zero a direction of some kind, another one for each `step`, and the same on all ranks. From a
/// column of zeros the power method would never find anything.
void fill_zero_columns(const at::Tensor& matrices, std::int64_t step);

/// The products of two batches of matrices. On the host, half precision is multiplied in float, since libtorch has no
/// kernel for it.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b);

}  // namespace cohort::hooks
