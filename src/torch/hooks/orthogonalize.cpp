// SPDX-License-Identifier: BSD-3-Clause
#include "torch/hooks/orthogonalize.h"

#include <ATen/ATen.h>

namespace cohort::hooks {

namespace {

bool has_half_elements(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

void normalize(const at::Tensor& column, double epsilon) {
  column.div_(column.square().sum(1, /*keepdim=*/true).sqrt_().add_(epsilon));
}

/// Removes the components of `columns` in the directions of the orthonormal columns `before`.
void project_out(const at::Tensor& columns, const at::Tensor& before) {
  columns.sub_(at::bmm(before, at::bmm(before.transpose(1, 2), columns)));
}

/// If a matrix has more columns than its rank, some columns become nothing but rounding errors, which need not be
/// orthogonal to the others. So each is projected twice, which is enough (Parlett, "The Symmetric Eigenvalue Problem",
/// 1980). With an epsilon such columns are almost zero instead, and once is enough; a second pass would also divide by
/// the epsilon twice.
void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  for (std::int64_t i = 0; i < matrices.size(2); ++i) {
    const auto column = matrices.narrow(2, i, 1);
    for (int pass = 0; pass < (i == 0 || epsilon > 0 ? 1 : 2); ++pass) {
      if (i > 0) project_out(column, matrices.narrow(2, 0, i));
      normalize(column, epsilon);
    }
  }
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  if (has_half_elements(matrices)) {
    // In float, since norms in half precision overflow at 256 and vanish at 0.0002.
    const auto floats = matrices.to(at::kFloat);
    gram_schmidt(floats, epsilon);
    matrices.copy_(floats);
  } else if (matrices.size(2) <= 2) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu() && has_half_elements(a)) {
    return at::bmm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
  }
  return at::bmm(a, b);
}

}  // namespace cohort::hooks
