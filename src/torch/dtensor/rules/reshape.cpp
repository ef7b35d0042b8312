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
  if (product(sizes) != elements) return std::nullopt;
  return sizes;
}

std::optional<Reshaped> reshape(at::IntArrayRef from, at::IntArrayRef to, const Layout& layout) {
  Reshaped reshaped{.placements = layout.placements,
                    .ranks = c10::DimVector(to.size(), 1),
                    .uneven_source = c10::DimVector(to.size(), -1)};
  const auto is_shard = [](const Placement& each) { return each.is_shard(); };
  if (std::none_of(layout.placements.begin(), layout.placements.end(), is_shard)) return reshaped;
  if (from == to) {
    for (const auto& each : layout.placements) {
      if (each.is_shard()) reshaped.uneven_source[static_cast<std::size_t>(each.dim())] = each.dim();
    }
    return reshaped;
  }
  if (product(from) == 0) return std::nullopt;  // groups cannot be told apart
  c10::DimVector from_sizes(from);
  c10::DimVector to_sizes(to);
  for (std::size_t mesh_dim = 0; mesh_dim < layout.placements.size(); ++mesh_dim) {
    const auto& placement = layout.placements[mesh_dim];
    if (!placement.is_shard()) continue;
    const auto ranks = layout.mesh.size(static_cast<std::int64_t>(mesh_dim));
    const auto source = static_cast<std::size_t>(placement.dim());
    const auto group = group_of(source, from, to);
    const auto shard = as_group_shard(placement, group, from_sizes);
    if (!shard) return std::nullopt;
    const auto target = target_of(*shard, group, to_sizes);
    if (!target) return std::nullopt;
    const bool is_even = shard->length % ranks == 0 && target->length % ranks == 0;
    const bool is_same_step = shard->length == target->length && shard->step == target->step;
    if (!is_even && !is_same_step) return std::nullopt;
    reshaped.placements[mesh_dim] = target->split_factor == 1
                                        ? Placement(Shard(static_cast<std::int64_t>(target->dim)))
                                        : StridedShard(static_cast<std::int64_t>(target->dim), target->split_factor);
    from_sizes[source] = is_even ? from_sizes[source] / ranks : unknown;
    to_sizes[target->dim] = is_even ? to_sizes[target->dim] / ranks : unknown;
    reshaped.ranks[target->dim] *= ranks;
    if (!is_even) reshaped.uneven_source[target->dim] = placement.dim();
  }
  return reshaped;
}

c10::DimVector reshaped_local_sizes(const Reshaped& reshaped, at::IntArrayRef to, at::IntArrayRef from,
                                    at::IntArrayRef local) {
  c10::DimVector sizes(to);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (reshaped.uneven_source[d] < 0) {
      sizes[d] /= reshaped.ranks[d];
    } else if (const auto source = static_cast<std::size_t>(reshaped.uneven_source[d]); from[source] != 0) {
      sizes[d] = sizes[d] * local[source] / from[source];
    }
  }
  return sizes;
}

}  // namespace cohort::dtensor
