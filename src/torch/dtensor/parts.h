// SPDX-License-Identifier: BSD-3-Clause
//
// Parts of a tensor and the whole: sizes, and copies between the two.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/DimVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "torch/dtensor/shard_ranges.h"
#include "torch/functional/async_tensor.h"

namespace cohort::dtensor {

/// Whether the dimensions before `dim` have one element: consecutive parts of `dim` then are consecutive in memory.
inline bool is_outermost(at::IntArrayRef sizes, std::int64_t dim) {
  const auto outer = sizes.slice(0, static_cast<std::size_t>(dim));
  return std::all_of(outer.begin(), outer.end(), [](std::int64_t size) { return size == 1; });
}

inline std::vector<std::int64_t> with_size(at::IntArrayRef sizes, std::int64_t dim, std::int64_t size) {
  auto changed = sizes.vec();
  changed[static_cast<std::size_t>(dim)] = size;
  return changed;
}

/// Whether every rank has one range, and all have the same size.
inline bool is_even(const Placement& shard, std::int64_t elements, std::int64_t ranks) {
  return is_consecutive(shard) && elements % ranks == 0;
}

/// The order of dimensions in which the one at `from` comes to `to`: movedim() in one step of the dispatcher instead of
/// three.
inline c10::DimVector moved_order(std::int64_t dims, std::int64_t from, std::int64_t to) {
  c10::DimVector order;
  for (std::int64_t d = 0; d < dims; ++d) {
    if (d != from) order.push_back(d);
  }
  order.insert(order.begin() + to, from);
  return order;
}

/// Equal parts of dimension `dim`, rank after rank, the ranks being the first dimension of the result. One copy, or
/// none if the parts lie like that already.
inline at::Tensor pack_evenly(const at::Tensor& whole, std::int64_t dim, std::int64_t ranks) {
  if (is_outermost(whole.sizes(), dim)) return whole.contiguous().view({ranks, -1});
  c10::DimVector sizes(whole.sizes());
  sizes[static_cast<std::size_t>(dim)] /= ranks;
  sizes.insert(sizes.begin() + dim, ranks);
  return whole.view(sizes).permute(moved_order(whole.dim() + 1, dim, 0)).contiguous();
}

/// The reverse: `parts` is contiguous and has the elements of a tensor of `sizes`. If it is in flight, so is the
/// result.
inline at::Tensor unpack_evenly(const at::Tensor& parts, at::IntArrayRef sizes, std::int64_t dim, std::int64_t ranks) {
  if (is_outermost(sizes, dim)) return parts.view(sizes);
  c10::DimVector split(sizes);
  split[static_cast<std::size_t>(dim)] /= ranks;
  split.insert(split.begin(), ranks);
  const auto dims = static_cast<std::int64_t>(sizes.size());
  return functional::copy_of(parts.view(split).permute(moved_order(dims + 1, 0, dim))).view(sizes);
}

/// Copies what `rank` holds of dimension `dim` out of the whole to the beginning of its part.
inline void copy_to_part(const at::Tensor& part, const at::Tensor& whole, std::int64_t dim, const Placement& shard,
                         std::int64_t ranks, std::int64_t rank) {
  std::int64_t position = 0;
  for_each_range(shard, whole.size(dim), ranks, rank, [&](const ShardRange& range) {
    part.narrow(dim, position, range.size).copy_(whole.narrow(dim, range.offset, range.size));
    position += range.size;
  });
}

/// The reverse: puts a rank's part, which may be padded at the end, into its places in the whole.
inline void copy_from_part(const at::Tensor& whole, const at::Tensor& part, std::int64_t dim, const Placement& shard,
                           std::int64_t ranks, std::int64_t rank) {
  std::int64_t position = 0;
  for_each_range(shard, whole.size(dim), ranks, rank, [&](const ShardRange& range) {
    whole.narrow(dim, range.offset, range.size).copy_(part.narrow(dim, position, range.size));
    position += range.size;
  });
}

/// Parts of any sizes as one tensor of one dimension, rank after rank; `splits` are their elements. One copy, or none
/// if they lie like that already.
inline at::Tensor packed_for_ranks(const at::Tensor& local, const Placement& to,
                                   const std::vector<std::int64_t>& splits) {
  if (is_outermost(local.sizes(), to.dim()) && is_consecutive(to)) return local.contiguous().view({-1});
  const auto ranks = static_cast<std::int64_t>(splits.size());
  auto packed = at::empty({local.numel()}, local.options());
  std::int64_t position = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto split = splits[static_cast<std::size_t>(rank)];
    const auto rows = shard_size(to, local.size(to.dim()), ranks, rank);
    const auto part = packed.narrow(0, position, split).view(with_size(local.sizes(), to.dim(), rows));
    copy_to_part(part, local, to.dim(), to, ranks, rank);
    position += split;
  }
  return packed;
}

}  // namespace cohort::dtensor
