// SPDX-License-Identifier: BSD-3-Clause
//
// The sizes of the operators' results, and the checks that need no group. Both the kernels that communicate and the
// shape-only ones use them, so that they agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace cohort::functional {

using Sizes = std::vector<std::int64_t>;

/// Throws AssertionError unless the tensor is contiguous.
void check_contiguous(const at::Tensor& tensor, std::string_view op);
/// The dimension from 0; throws IndexError if the tensor does not have it. A scalar has dimension 0.
std::int64_t wrap_dim(const at::Tensor& tensor, std::int64_t dim, std::string_view op);

/// Dimension 0 times the number of ranks; {ranks} for a scalar.
Sizes gathered_sizes(const at::Tensor& input, std::int64_t ranks);
/// Throws ValueError unless `out` has these sizes and the input's dtype.
void check_gather_output(const at::Tensor& out, const at::Tensor& input, std::int64_t ranks);
/// A dimension divided by the number of ranks; AssertionError if that leaves a rest.
Sizes scattered_sizes(const at::Tensor& input, std::int64_t dim, std::int64_t ranks, std::string_view op);
/// AssertionError unless both lists are given or none; ValueError unless the input has as many rows as are sent.
Sizes exchanged_sizes(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits);
/// shard_dim divided by the number of ranks, and gather_dim times it; the dimensions are not negative and not equal.
Sizes resharded_sizes(const at::Tensor& input, std::int64_t gather_dim, std::int64_t shard_dim, std::int64_t ranks);

}  // namespace cohort::functional
