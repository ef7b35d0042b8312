// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/distribute.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "torch/dtensor/parts.h"
#include "torch/dtensor/transitions.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

namespace {

void check_distributable(const Layout& layout, std::optional<std::int64_t> src) {
  for (std::size_t dim = 0; dim < layout.placements.size(); ++dim) {
    if (layout.placements[dim].is_partial()) {
      throw Error(
          fmt::format("distribute_tensor: {}: a tensor cannot be distributed as Partial; choose Replicate or Shard on "
                      "mesh dimension {}",
                      to_string(layout.placements), dim));
    }
    if (src && (*src < 0 || *src >= layout.mesh.shape()[dim])) {
      throw ValueError(fmt::format("distribute_tensor: src_data_rank is {}, but mesh dimension {} has {} ranks", *src,
                                   dim, layout.mesh.shape()[dim]));
    }
  }
}

/// The scatter is an all-to-all in which only the root sends: parts of different sizes need no padding then.
at::Tensor scatter_from(const at::Tensor& whole, const Placement& to, int root, const ProcessGroupPtr& group) {
  const std::int64_t ranks = group->size();
  const auto elements = whole.size(to.dim());
  const auto own = with_size(whole.sizes(), to.dim(), shard_size(to, elements, ranks, group->rank()));
  if (whole.numel() == 0) return at::empty(own, whole.options());
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> received(static_cast<std::size_t>(ranks));
  received[static_cast<std::size_t>(root)] = c10::multiply_integers(own);
  auto parts = at::empty({0}, whole.options());
  if (group->rank() == root) {
    const auto row = whole.numel() / elements;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      sent[static_cast<std::size_t>(rank)] = row * shard_size(to, elements, ranks, rank);
    }
    parts = packed_for_ranks(whole, to, sent);
  }
  return functional::on_group::all_to_all(parts, received, sent, group).view(own);
}

/// Whether the ranks of my group on this mesh dimension hold values that reach anybody: on the later mesh dimensions
/// only the root's values are sent on.
bool is_sent_on(const std::vector<std::int64_t>& coordinate, std::size_t mesh_dim, std::int64_t root) {
  return std::all_of(coordinate.begin() + static_cast<std::ptrdiff_t>(mesh_dim) + 1, coordinate.end(),
                     [&](std::int64_t index) { return index == root; });
}

}  // namespace

at::Tensor distribute_local(const at::Tensor& full, const Layout& layout, std::optional<std::int64_t> src) {
  check_distributable(layout, src);
  const auto* const coordinate = layout.mesh.coordinate();
  if (coordinate == nullptr) return at::empty({0}, full.options());
  auto local = full;
  bool is_own = false;
  for (std::size_t dim = 0; dim < coordinate->size(); ++dim) {
    const auto& placement = layout.placements[dim];
    const auto ranks = layout.mesh.shape()[dim];
    if (ranks == 1) continue;
    const bool communicates = src && is_sent_on(*coordinate, dim, *src);
    if (!communicates) {
      if (placement.is_replicate()) continue;
      local = take_shard(local, placement, ranks, (*coordinate)[dim]);
      is_own = false;
    } else {
      const auto& group = layout.mesh.group(static_cast<std::int64_t>(dim));
      local = placement.is_shard() ? scatter_from(local, placement, static_cast<int>(*src), group)
                                   : functional::on_group::broadcast(local.contiguous(), static_cast<int>(*src), group);
      is_own = true;
    }
  }
  return is_own ? local : local.clone(at::MemoryFormat::Contiguous);
}

}  // namespace cohort::dtensor
