// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/rules/common.h"

#include <algorithm>
#include <memory>

namespace cohort::dtensor {

c10::DimVector broadcast_sizes(const OpCall& call) {
  c10::DimVector result;
  const auto& arguments = call.op().schema().arguments();
  for (const auto& each : call.tensors()) {
    const auto& sizes = each.sizes;
    if (each.is_written && arguments[each.position].kwarg_only()) continue;
    if (sizes.size() > result.size()) result.insert(result.begin(), sizes.size() - result.size(), 1);
    const auto shift = result.size() - sizes.size();
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      auto& size = result[d + shift];
      if (size == 1) size = sizes[d];
      if (sizes[d] != 1 && sizes[d] != size) call.refuse_sizes("the sizes do not broadcast to one another");
    }
  }
  for (const auto& each : call.tensors()) {
    if (each.is_written && each.sizes != at::IntArrayRef(result)) {
      call.refuse_sizes("the tensor that is written has not the sizes of the result");
    }
  }
  return result;
}

Strategies broadcast_strategies(const OpCall& call, at::IntArrayRef result) {
  const auto& tensors = call.tensors();
  Strategies strategies;
  strategies.push_back(all_replicated(call));
  for (std::size_t d = 0; d < result.size(); ++d) {
    Strategy strategy{.arguments = {}, .results = {Shard(static_cast<std::int64_t>(d))}};
    bool is_possible = true;
    for (const auto& each : tensors) {
      const auto shift = result.size() - each.sizes.size();
      const bool has_it = d >= shift && each.sizes[d - shift] == result[d];
      is_possible = is_possible && (has_it || !each.is_written);
      if (has_it) {
        strategy.arguments.push_back(Shard(static_cast<std::int64_t>(d - shift)));
      } else {
        strategy.arguments.push_back(Replicate());
      }
    }
    if (is_possible) strategies.push_back(std::move(strategy));
  }
  return strategies;
}

c10::SmallVector<Placement::Reduction, 2> partial_reductions_of(const OpCall& call) {
  c10::SmallVector<Placement::Reduction, 2> reductions;
  for (const auto& each : call.tensors()) {
    if (each.impl == nullptr) continue;
    for (const auto& placement : each.impl->layout()->placements) {
      if (!placement.is_partial()) continue;
      if (std::find(reductions.begin(), reductions.end(), placement.reduction()) == reductions.end()) {
        reductions.push_back(placement.reduction());
      }
    }
  }
  return reductions;
}

bool may_leave_ranks_empty(const TensorArgument& tensor, std::int64_t dim) {
  const auto& layout = *tensor.impl->layout();
  // The first part of a strided shard is the largest: who has nothing of it has nothing.
  std::int64_t parts = 1;
  for (const auto& each : layout.placements) {
    if (each.is_shard(dim)) parts = std::max(parts, each.split_factor());
  }
  const auto largest = shard_range(tensor.sizes[static_cast<std::size_t>(dim)], parts, 0).size;
  const auto ranks = layout.mesh.size();
  return shard_range(largest, ranks, ranks - 1).size == 0;
}

MeshDims mesh_dims_that_cut(const Layout& layout, std::int64_t dim) {
  MeshDims mesh_dims;
  for (std::size_t i = 0; i < layout.placements.size(); ++i) {
    const bool cuts = layout.placements[i].is_shard(dim) && layout.mesh.shape()[i] > 1;
    if (cuts) mesh_dims.push_back(static_cast<std::int64_t>(i));
  }
  return mesh_dims;
}

LayoutPtr replicated_layout(const DeviceMesh& mesh) {
  return std::make_shared<const Layout>(
      Layout{.mesh = mesh, .placements = Placements(static_cast<std::size_t>(mesh.ndim()), Replicate())});
}

}  // namespace cohort::dtensor
