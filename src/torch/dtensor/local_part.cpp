// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstddef>
#include <utility>

#include "torch/dtensor/redistribute_local.h"
#include "torch/dtensor/shard_ranges.h"

namespace cohort::dtensor {

namespace {

/// Where an element of a rank's part lies in the whole; for the one behind the last, the end of the last range.
std::int64_t position_in_whole(const Placement& shard, std::int64_t elements, std::int64_t ranks, std::int64_t rank,
                               std::int64_t index) {
  std::int64_t position = elements;
  std::int64_t passed = 0;
  for_each_range(shard, elements, ranks, rank, [&](const ShardRange& range) {
    if (passed <= index) position = range.offset + std::min(index - passed, range.size);
    passed += range.size;
  });
  return position;
}

struct LocalPart {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> offsets;
};

LocalPart local_part(at::IntArrayRef sizes, const Layout& layout) {
  const auto* const coordinate = layout.mesh.coordinate();
  if (coordinate == nullptr) return {.sizes = {0}, .offsets = {0}};
  LocalPart part{.sizes = sizes.vec(), .offsets = std::vector<std::int64_t>(sizes.size())};
  const auto& shape = layout.mesh.shape();
  std::vector<std::int64_t> before(shape.size());  // the size that the mesh dimension has cut
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const auto& placement = layout.placements[dim];
    if (!placement.is_shard()) continue;
    auto& size = part.sizes.at(static_cast<std::size_t>(placement.dim()));
    before[dim] = std::exchange(size, shard_size(placement, size, shape[dim], (*coordinate)[dim]));
  }
  for (auto dim = shape.size(); dim-- > 0;) {
    const auto& placement = layout.placements[dim];
    if (!placement.is_shard()) continue;
    auto& offset = part.offsets.at(static_cast<std::size_t>(placement.dim()));
    offset = position_in_whole(placement, before[dim], shape[dim], (*coordinate)[dim], offset);
  }
  return part;
}

}  // namespace

std::vector<std::int64_t> local_sizes(at::IntArrayRef sizes, const Layout& layout) {
  return local_part(sizes, layout).sizes;
}

std::vector<std::int64_t> local_offsets(at::IntArrayRef sizes, const Layout& layout) {
  return local_part(sizes, layout).offsets;
}

}  // namespace cohort::dtensor
