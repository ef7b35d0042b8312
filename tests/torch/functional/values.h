// SPDX-License-Identifier: BSD-3-Clause
//
// What the ranks of a test hold, so that each can compute by itself what a collective should give.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace cohort::test {

/// Different on every rank, and exact in any order of summation.
inline at::Tensor values_of(int rank, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  const auto count = c10::multiply_integers(sizes);
  return (at::arange(count, at::kFloat) + 100 * (rank + 1)).reshape(sizes).to(dtype);
}

/// What every rank holds, one after the other.
inline std::vector<at::Tensor> all_values(int ranks, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_of(rank, sizes, dtype));
  return all;
}

}  // namespace cohort::test
