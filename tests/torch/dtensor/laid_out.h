// SPDX-License-Identifier: BSD-3-Clause
//
// Dense tensors as distributed ones, for comparing every operator with what it computes on the whole tensor.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/dtensor.h>

#include <cmath>
#include <random>
#include <vector>

#include "torch/dtensor/redistribute_local.h"

namespace cohort::test {

/// Every placement that a tensor with this many dimensions can have on one mesh dimension.
inline std::vector<Placement> placements_of(std::int64_t dims, bool with_partial) {
  std::vector<Placement> all{Replicate()};
  for (std::int64_t d = 0; d < dims; ++d) all.push_back(Shard(d));
  if (with_partial) all.push_back(Partial());
  return all;
}

/// A distributed tensor with the values of `dense`, which is equal on all ranks. Where it is Partial, every rank holds
/// another share, and the shares add up to the value.
inline DTensor laid_out(const at::Tensor& dense, const DeviceMesh& mesh, const Placements& placements) {
  auto without_partial = placements;
  double share = 1;
  for (std::size_t dim = 0; dim < placements.size(); ++dim) {
    if (!placements[dim].is_partial()) continue;
    without_partial[dim] = Replicate();
    const auto ranks = static_cast<double>(mesh.size(static_cast<std::int64_t>(dim)));
    const auto rank = static_cast<double>((*mesh.coordinate())[dim]);
    share *= 2 * (rank + 1) / (ranks * (ranks + 1));
  }
  const auto whole = distribute_tensor(dense.detach(), mesh, without_partial, {.src_data_rank = std::nullopt});
  auto local = whole.to_local();
  if (placements != without_partial) local = local * share;
  return DTensor::from_local(local, mesh, placements,
                             {.sizes = dense.sizes().vec(), .strides = dense.contiguous().strides().vec()});
}

/// All lists of placements, one for each tensor, if they are at most `most`; otherwise `most` of them, chosen by the
/// seed.
inline std::vector<std::vector<Placements>> combinations(const std::vector<at::Tensor>& tensors, std::int64_t mesh_dims,
                                                         bool with_partial, std::size_t most, unsigned seed) {
  std::vector<std::vector<Placement>> choices;  // for each tensor and mesh dimension
  double count = 1;
  for (const auto& each : tensors) {
    for (std::int64_t d = 0; d < mesh_dims; ++d) {
      choices.push_back(placements_of(each.dim(), with_partial && each.is_floating_point()));
      count *= static_cast<double>(choices.back().size());
    }
  }
  std::vector<std::vector<Placements>> all;
  const auto add = [&](const std::vector<std::size_t>& which) {
    std::vector<Placements> lists(tensors.size());
    for (std::size_t i = 0; i < which.size(); ++i) {
      lists[i / static_cast<std::size_t>(mesh_dims)].push_back(choices[i][which[i]]);
    }
    all.push_back(std::move(lists));
  };
  std::vector<std::size_t> which(choices.size(), 0);
  if (count <= static_cast<double>(most)) {
    for (;;) {
      add(which);
      std::size_t i = 0;
      while (i < which.size() && ++which[i] == choices[i].size()) which[i++] = 0;
      if (i == which.size()) return all;
    }
  }
  std::mt19937 random(seed);
  for (std::size_t n = 0; n < most; ++n) {
    for (std::size_t i = 0; i < which.size(); ++i) which[i] = random() % choices[i].size();
    add(which);
  }
  return all;
}

}  // namespace cohort::test
