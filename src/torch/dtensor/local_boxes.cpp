// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/local_boxes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "torch/dtensor/shard_ranges.h"

namespace cohort::dtensor {

namespace {

/// Ranges of one dimension of the whole, in the order in which the part has them, one behind the other.
using Ranges = std::vector<ShardRange>;

std::int64_t total_size(const Ranges& ranges) {
  std::int64_t sum = 0;
  for (const auto& each : ranges) sum += each.size;
  return sum;
}

void append_range(Ranges& ranges, const ShardRange& next) {
  if (!ranges.empty() && ranges.back().offset + ranges.back().size == next.offset) {
    ranges.back().size += next.size;
  } else {
    ranges.push_back(next);
  }
}

/// What a shard keeps of these ranges.
Ranges cut_ranges(const Ranges& ranges, const Placement& shard, std::int64_t ranks, std::int64_t rank) {
  Ranges kept;
  for_each_range(shard, total_size(ranges), ranks, rank, [&](const ShardRange& share) {
    std::int64_t passed = 0;
    for (const auto& each : ranges) {
      const auto begin = std::max(share.offset, passed);
      const auto end = std::min(share.offset + share.size, passed + each.size);
      if (begin < end) append_range(kept, {each.offset + begin - passed, end - begin});
      passed += each.size;
    }
  });
  return kept;
}

/// The product of the boxes so far and the ranges of one more dimension.
std::vector<LocalBox> with_dimension(const std::vector<LocalBox>& boxes, const Ranges& ranges) {
  std::vector<LocalBox> result;
  for (const auto& box : boxes) {
    std::int64_t passed = 0;
    for (const auto& range : ranges) {
      auto& next = result.emplace_back(box);
      next.offsets.push_back(range.offset);
      next.local_offsets.push_back(passed);
      next.sizes.push_back(range.size);
      passed += range.size;
    }
  }
  return result;
}

}  // namespace

std::vector<LocalBox> local_boxes(at::IntArrayRef sizes, const Layout& layout) {
  const auto* const coordinate = layout.mesh.coordinate();
  if (coordinate == nullptr) return {};
  std::vector<LocalBox> boxes{LocalBox{}};
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    Ranges ranges;
    if (sizes[dim] > 0) ranges.push_back({0, sizes[dim]});
    for (std::size_t mesh_dim = 0; mesh_dim < layout.placements.size(); ++mesh_dim) {
      const auto& placement = layout.placements[mesh_dim];
      if (!placement.is_shard(static_cast<std::int64_t>(dim))) continue;
      ranges = cut_ranges(ranges, placement, layout.mesh.shape()[mesh_dim], (*coordinate)[mesh_dim]);
    }
    boxes = with_dimension(boxes, ranges);
  }
  return boxes;
}

}  // namespace cohort::dtensor
