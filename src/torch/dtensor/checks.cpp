// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/checks.h"

#include <cohort/error.h>
#include <fmt/format.h>

#include <utility>

namespace cohort::dtensor {

LayoutPtr checked_layout(const DeviceMesh& mesh, Placements placements, std::int64_t dims, std::string_view who) {
  const auto mesh_dims = static_cast<std::size_t>(mesh.ndim());
  if (placements.empty()) placements.assign(mesh_dims, Replicate());
  if (placements.size() != mesh_dims) {
    throw ValueError(fmt::format("{}: {} placements for a mesh of {} dimensions; give one for each", who,
                                 placements.size(), mesh_dims));
  }
  for (auto& each : placements) {
    if (!each.is_shard()) continue;
    const auto dim = each.dim() < 0 ? each.dim() + dims : each.dim();
    if (dim < 0 || dim >= dims) {
      throw IndexError(fmt::format("{}: {} of a tensor with {} dimensions", who, to_string(each), dims));
    }
    each = each.is_strided_shard() ? Placement(StridedShard(dim, each.split_factor())) : Placement(Shard(dim));
  }
  return std::make_shared<const Layout>(Layout{.mesh = mesh, .placements = std::move(placements)});
}

}  // namespace cohort::dtensor
