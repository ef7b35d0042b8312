// SPDX-License-Identifier: BSD-3-Clause
#include "torch/hooks/orthogonalize.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace cohort::hooks {

namespace {

bool has_half_elements(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Divides the columns by their norms and returns these. Columns of zeros stay; what is not finite becomes NaN.
at::Tensor normalize(const at::Tensor& columns) {
  // Squares of elements that are scaled to 1 neither overflow nor vanish.
  const auto scale = columns.abs().amax(1, /*keepdim=*/true);
  columns.div_(at::where(scale == 0, at::ones_like(scale), scale));
  const auto norm = columns.square().sum(1, /*keepdim=*/true).sqrt_();
  columns.div_(at::where(scale == 0, at::ones_like(norm), norm));
  return norm.mul_(scale);
}

/// Removes the components of `columns` in the directions of the orthonormal columns `before`.
void project_out(const at::Tensor& columns, const at::Tensor& before) {
  columns.sub_(at::bmm(before, at::bmm(before.transpose(1, 2), columns)));
}

/// What is left of a column may be nothing but rounding errors, in any direction. So each column is projected twice,
/// which is enough (Parlett, "The Symmetric Eigenvalue Problem", 1980): if the second projection takes most of what the
/// first has left, that was no direction of its own, and the column is zero.
void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  std::vector<at::Tensor> norms;
  for (std::int64_t i = 0; i < matrices.size(2); ++i) {
    const auto column = matrices.narrow(2, i, 1);
    auto norm = normalize(column);
    if (i > 0) {
      const auto before = matrices.narrow(2, 0, i);
      project_out(column, before);
      norm.mul_(normalize(column));
      project_out(column, before);
      const auto left = normalize(column);
      column.masked_fill_(left < 0.5, 0);
      norm.mul_(left);
    }
    norms.push_back(norm);
  }
  // A norm of 0 is that of a column of zeros, which stays one.
  if (epsilon > 0) matrices.div_(at::cat(norms, 2).reciprocal_().mul_(epsilon).add_(1));
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

void fill_zero_columns(const at::Tensor& matrices, std::int64_t step) {
  // Waves, of a length for each column and step: a random number for each element would cost more than the product that
  // follows, and on a GPU the host would have to know whether there is a column of zeros.
  const auto columns = matrices.size(2);
  const auto options = matrices.options().dtype(has_half_elements(matrices) ? at::kFloat : matrices.scalar_type());
  constexpr double golden_ratio = 1.618033988749895;
  std::vector<double> turns;
  for (std::int64_t i = 0; i < columns; ++i) {
    turns.push_back(6.283185307179586 * std::fmod(golden_ratio * static_cast<double>(step * columns + i + 1), 1.0));
  }
  const auto rows = at::arange(1, matrices.size(1) + 1, options).unsqueeze(1);
  const auto waves = rows.mul(at::tensor(turns, options).unsqueeze(0)).cos_().to(matrices.scalar_type());
  const auto is_zero = matrices.abs().amax(1, /*keepdim=*/true) == 0;
  matrices.copy_(at::where(is_zero, waves.unsqueeze(0), matrices));
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu() && has_half_elements(a)) {
    return at::bmm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
  }
  return at::bmm(a, b);
}

}  // namespace cohort::hooks
