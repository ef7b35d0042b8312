// SPDX-License-Identifier: BSD-3-Clause
//
// What a rank holds of a tensor dimension: one range under a plain shard, up to split_factor ranges under a strided
// one.
#pragma once

#include <cohort/torch/placement.h>

#include <cstdint>

namespace cohort::dtensor {

/// Calls visit(ShardRange) for each range, in order; not for empty ones.
template <class Visit>
void for_each_range(const Placement& shard, std::int64_t elements, std::int64_t ranks, std::int64_t rank,
                    Visit&& visit) {
  const auto parts = shard.split_factor();
  for (std::int64_t each = 0; each < parts; ++each) {
    const auto part = shard_range(elements, parts, each);
    const auto share = shard_range(part.size, ranks, rank);
    if (share.size > 0) visit(ShardRange{part.offset + share.offset, share.size});
  }
}

/// The number of elements that `rank` holds. No rank holds more than rank 0.
inline std::int64_t shard_size(const Placement& shard, std::int64_t elements, std::int64_t ranks, std::int64_t rank) {
  std::int64_t sum = 0;
  for_each_range(shard, elements, ranks, rank, [&](const ShardRange& range) { sum += range.size; });
  return sum;
}

/// Whether the ranks hold one range each, in the order of the ranks.
inline bool is_consecutive(const Placement& shard) {
  return shard.split_factor() == 1;
}

}  // namespace cohort::dtensor
