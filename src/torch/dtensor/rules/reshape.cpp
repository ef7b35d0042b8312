// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/rules/reshape.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

namespace cohort::dtensor {

namespace {

std::int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// Neighbouring dimensions [from_begin, from_end) that become [to_begin, to_end).
struct Group {
  std::size_t from_begin, from_end, to_begin, to_end;
};

Group group_of(std::size_t dim, at::IntArrayRef from, at::IntArrayRef to) {
  std::size_t i = 0;
  std::size_t j = 0;
  for (;;) {
    const auto from_begin = i;
    const auto to_begin = j;
    auto a = from[i++];
    auto b = j < to.size() ? to[j++] : 1;
    while (a != b) {
      if (a < b) {
        a *= from[i++];
      } else {
        b *= to[j++];
      }
    }
    if (dim < i) return {from_begin, i, to_begin, j};
  }
}

/// The sizes that a dimension has while the mesh dimensions are applied one after the other; `unknown` once it has been
/// divided unevenly, because its size then differs between ranks.
constexpr std::int64_t unknown = -1;

std::optional<std::int64_t> known_product(const c10::DimVector& sizes, std::size_t begin, std::size_t end) {
  std::int64_t result = 1;
  for (auto i = begin; i < end; ++i) {
    if (sizes[i] == unknown) return std::nullopt;
    result *= sizes[i];
  }
  return result;
}

/// A shard of one dimension of a group, seen as a shard of the group's elements.
struct GroupShard {
  std::int64_t split_factor;  ///< the parts of which every rank has a share
  std::int64_t length;        ///< of a part, in steps that are divided among the ranks
  std::int64_t step;          ///< elements in a step
};

std::optional<GroupShard> as_group_shard(const Placement& shard, const Group& group, const c10::DimVector& sizes) {
  const auto dim = static_cast<std::size_t>(shard.dim());
  const auto before = known_product(sizes, group.from_begin, dim);
  const auto after = known_product(sizes, dim + 1, group.from_end);
  const auto size = sizes[dim];
  if (!before || !after || size == unknown || size % shard.split_factor() != 0) return std::nullopt;
  return GroupShard{
      .split_factor = *before * shard.split_factor(), .length = size / shard.split_factor(), .step = *after};
}

/// The reverse, among the dimensions after the view.
struct Target {
  std::size_t dim;
  std::int64_t split_factor;
  std::int64_t length;
  std::int64_t step;
};

std::optional<Target> target_of(const GroupShard& shard, const Group& group, const c10::DimVector& sizes) {
  auto factor = shard.split_factor;
  auto dim = group.to_begin;
  while (dim + 1 < group.to_end && sizes[dim] != unknown && factor % sizes[dim] == 0) factor /= sizes[dim++];
  if (dim == group.to_end || sizes[dim] == unknown || sizes[dim] % factor != 0) return std::nullopt;
  const auto after = known_product(sizes, dim + 1, group.to_end);
  if (!after) return std::nullopt;
  return Target{.dim = dim, .split_factor = factor, .length = sizes[dim] / factor, .step = *after};
}

/// The dimension after the view that is exactly this one, with dimensions of size 1 added or removed at most.
std::optional<std::size_t> unchanged_dim(std::size_t dim, at::IntArrayRef from, at::IntArrayRef to) {
  if (from == to) return dim;
  if (product(from) == 0) return std::nullopt;  // groups cannot be told apart
  const auto group = group_of(dim, from, to);
  const auto is_one = [](std::int64_t size) { return size == 1; };
  const auto many_from = std::find_if_not(from.begin() + group.from_begin, from.begin() + group.from_end, is_one);
  const auto many_to = std::find_if_not(to.begin() + group.to_begin, to.begin() + group.to_end, is_one);
  if (many_from != from.begin() + dim || many_to == to.begin() + group.to_end || *many_from != *many_to) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(many_to - to.begin());
}

Placement shard_of(std::int64_t dim, std::int64_t split_factor) {
  return split_factor == 1 ? Placement(Shard(dim)) : StridedShard(dim, split_factor);
}

}  // namespace

std::optional<c10::DimVector> inferred_sizes(at::IntArrayRef from, at::IntArrayRef to) {
  c10::DimVector sizes(to);
  const auto elements = product(from);
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    *open = 1;
    const auto others = product(sizes);
    if (others == 0 || elements % others != 0) return std::nullopt;
    *open = elements / others;
  }
  const bool is_negative = std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; });
  if (is_negative || product(sizes) != elements) return std::nullopt;
  return sizes;
}

Reshaped reshape(at::IntArrayRef from, at::IntArrayRef to, const Layout& layout) {
  Reshaped reshaped{.refused = std::nullopt,
                    .placements = layout.placements,
                    .ranks = c10::DimVector(to.size(), 1),
                    .uneven_source = c10::DimVector(to.size(), -1),
                    .uneven_size = c10::DimVector(to.size(), -1)};
  c10::DimVector from_sizes(from);
  c10::DimVector to_sizes(to);
  for (std::size_t mesh_dim = 0; mesh_dim < layout.placements.size(); ++mesh_dim) {
    const auto& placement = layout.placements[mesh_dim];
    if (!placement.is_shard()) continue;
    const auto source = static_cast<std::size_t>(placement.dim());
    if (const auto same = unchanged_dim(source, from, to)) {
      const auto dim = static_cast<std::int64_t>(*same);
      reshaped.placements[mesh_dim] = shard_of(dim, placement.split_factor());
      reshaped.uneven_source[*same] = placement.dim();
      reshaped.uneven_size[*same] = from[source];
      continue;
    }
    reshaped.refused = mesh_dim;  // unless all that follows succeeds
    if (product(from) == 0) return reshaped;
    const auto ranks = layout.mesh.size(static_cast<std::int64_t>(mesh_dim));
    const auto group = group_of(source, from, to);
    const auto shard = as_group_shard(placement, group, from_sizes);
    if (!shard) return reshaped;
    const auto target = target_of(*shard, group, to_sizes);
    if (!target) return reshaped;
    const bool is_even = shard->length % ranks == 0 && target->length % ranks == 0;
    const bool is_same_step = shard->length == target->length && shard->step == target->step;
    if (!is_even && !is_same_step) return reshaped;
    reshaped.refused.reset();
    reshaped.placements[mesh_dim] = shard_of(static_cast<std::int64_t>(target->dim), target->split_factor);
    if (is_even) {
      from_sizes[source] /= ranks;
      to_sizes[target->dim] /= ranks;
      reshaped.ranks[target->dim] *= ranks;
    } else {
      reshaped.uneven_source[target->dim] = placement.dim();
      reshaped.uneven_size[target->dim] = from_sizes[source];
      from_sizes[source] = unknown;
      to_sizes[target->dim] = unknown;
    }
  }
  return reshaped;
}

c10::DimVector reshaped_local_sizes(const Reshaped& reshaped, at::IntArrayRef to, at::IntArrayRef local) {
  c10::DimVector sizes(to);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    sizes[d] /= reshaped.ranks[d];
    if (reshaped.uneven_source[d] < 0 || reshaped.uneven_size[d] == 0) continue;
    sizes[d] = sizes[d] * local[static_cast<std::size_t>(reshaped.uneven_source[d])] / reshaped.uneven_size[d];
  }
  return sizes;
}

}  // namespace cohort::dtensor
