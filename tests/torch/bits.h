// SPDX-License-Identifier: BSD-3-Clause
//
// Comparison by bits: -0 and +0 differ, for which at::equal() takes them alike, and a NaN equals itself.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace cohort::test {

/// The bytes of the elements, in row-major order.
inline std::string bits_of(const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  return {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
}

/// Undefined tensors are alike.
inline bool have_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && bits_of(a) == bits_of(b);
}

}  // namespace cohort::test
