// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/shapes.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace cohort::functional {

void check_contiguous(const at::Tensor& tensor, std::string_view op) {
  if (tensor.is_contiguous()) return;
  throw AssertionError(fmt::format("{}: the tensor of sizes {} has strides {}: call contiguous() first", op,
                                   tensor.sizes().vec(), tensor.strides().vec()));
}

std::int64_t wrap_dim(const at::Tensor& tensor, std::int64_t dim, std::string_view op) {
  const auto dims = std::max<std::int64_t>(tensor.dim(), 1);
  if (dim < -dims || dim >= dims) {
    throw IndexError(fmt::format("{}: a tensor of {} dimension(s) has no dimension {}", op, tensor.dim(), dim));
  }
  return dim < 0 ? dim + dims : dim;
}

Sizes gathered_sizes(const at::Tensor& input, std::int64_t ranks) {
  auto sizes = input.sizes().vec();
  if (sizes.empty()) return {ranks};
  sizes[0] *= ranks;
  return sizes;
}

void check_gather_output(const at::Tensor& out, const at::Tensor& input, std::int64_t ranks) {
  const auto sizes = gathered_sizes(input, ranks);
  if (out.sizes() == at::IntArrayRef(sizes) && out.scalar_type() == input.scalar_type()) return;
  throw ValueError(fmt::format("all_gather_into_tensor_out: `out` has sizes {} and dtype {}, not {} and {}",
                               out.sizes().vec(), c10::toString(out.scalar_type()), sizes,
                               c10::toString(input.scalar_type())));
}

Sizes scattered_sizes(const at::Tensor& input, std::int64_t dim, std::int64_t ranks, std::string_view op) {
  auto sizes = input.sizes().vec();
  if (sizes.empty()) throw AssertionError(fmt::format("{}: a scalar cannot be divided between {} ranks", op, ranks));
  auto& size = sizes[static_cast<std::size_t>(dim)];
  if (size % ranks != 0) {
    throw AssertionError(fmt::format("{}: dimension {} has {} elements, which cannot be divided between {} ranks", op,
                                     dim, size, ranks));
  }
  size /= ranks;
  return sizes;
}

Sizes exchanged_sizes(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits) {
  if (output_splits.empty() != input_splits.empty()) {
    throw AssertionError("all_to_all_single: give both the output splits and the input splits, or none of them");
  }
  auto sizes = input.sizes().vec();
  if (sizes.empty()) throw ValueError("all_to_all_single: a scalar has no rows to exchange");
  if (output_splits.empty()) return sizes;
  if (output_splits.size() != input_splits.size()) {
    throw ValueError(fmt::format("all_to_all_single: {} output splits but {} input splits", output_splits.size(),
                                 input_splits.size()));
  }
  const auto sent = std::accumulate(input_splits.begin(), input_splits.end(), std::int64_t{0});
  if (sent != sizes[0]) {
    throw ValueError(fmt::format("all_to_all_single: the input splits {} add up to {} rows, and the input has {}",
                                 input_splits.vec(), sent, sizes[0]));
  }
  sizes[0] = std::accumulate(output_splits.begin(), output_splits.end(), std::int64_t{0});
  return sizes;
}

Sizes resharded_sizes(const at::Tensor& input, std::int64_t gather_dim, std::int64_t shard_dim, std::int64_t ranks) {
  auto sizes = scattered_sizes(input, shard_dim, ranks, "shard_dim_alltoall");
  if (gather_dim == shard_dim) {
    throw ValueError(fmt::format("shard_dim_alltoall: dimension {} is both gathered and sharded", gather_dim));
  }
  sizes[static_cast<std::size_t>(gather_dim)] *= ranks;
  return sizes;
}

}  // namespace cohort::functional
