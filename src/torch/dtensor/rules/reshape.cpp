// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/rules/reshape.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace cohort::dtensor {

namespace {

std::int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// Where each dimension of `from` goes if it is the first of its group (sizes of 1 aside), and -1 otherwise.
c10::DimVector leading_counterparts(at::IntArrayRef from, at::IntArrayRef to) {
  c10::DimVector counterparts(from.size(), -1);
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < from.size() && j < to.size()) {
    const auto first_from = i;
    const auto first_to = j;
    auto a = from[i++];
    auto b = to[j++];
    while (a != b) {
      if (a < b) {
        a *= from[i++];
      } else {
        b *= to[j++];
      }
    }
    const auto leading = [](at::IntArrayRef sizes, std::size_t begin, std::size_t end) {
      auto at = begin;
      while (at + 1 < end && sizes[at] == 1) ++at;
      return at;
    };
    counterparts[leading(from, first_from, i)] = static_cast<std::int64_t>(leading(to, first_to, j));
  }
  return counterparts;
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
  Reshaped reshaped{.placements = layout.placements, .source = c10::DimVector(to.size(), -1)};
  const auto is_shard = [](const Placement& each) { return each.is_shard(); };
  if (std::none_of(layout.placements.begin(), layout.placements.end(), is_shard)) return reshaped;
  if (from == to) {
    for (const auto& each : layout.placements) {
      if (each.is_shard()) reshaped.source[static_cast<std::size_t>(each.dim())] = each.dim();
    }
    return reshaped;
  }
  if (product(from) == 0) return std::nullopt;  // groups cannot be told apart
  const auto counterparts = leading_counterparts(from, to);
  for (std::size_t i = 0; i < layout.placements.size(); ++i) {
    const auto& placement = layout.placements[i];
    if (!placement.is_shard()) continue;
    const auto source = static_cast<std::size_t>(placement.dim());
    const auto target = counterparts[source];
    if (target < 0) return std::nullopt;
    std::int64_t ranks = 1;
    for (std::size_t mesh_dim = 0; mesh_dim < layout.placements.size(); ++mesh_dim) {
      if (layout.placements[mesh_dim].is_shard(placement.dim())) {
        ranks *= layout.mesh.size(static_cast<std::int64_t>(mesh_dim));
      }
    }
    const auto to_size = to[static_cast<std::size_t>(target)];
    const bool is_same = to_size == from[source];
    if (!is_same && (placement.is_strided_shard() || from[source] % ranks != 0 || to_size % ranks != 0)) {
      return std::nullopt;
    }
    reshaped.placements[i] = placement.is_strided_shard() ? Placement(StridedShard(target, placement.split_factor()))
                                                          : Placement(Shard(target));
    reshaped.source[static_cast<std::size_t>(target)] = placement.dim();
  }
  return reshaped;
}

c10::DimVector reshaped_local_sizes(const Reshaped& reshaped, at::IntArrayRef to, at::IntArrayRef from,
                                    at::IntArrayRef local) {
  c10::DimVector sizes(to);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (reshaped.source[d] < 0) continue;
    const auto source = static_cast<std::size_t>(reshaped.source[d]);
    sizes[d] = from[source] == 0 ? 0 : sizes[d] * local[source] / from[source];
  }
  return sizes;
}

}  // namespace cohort::dtensor
