// SPDX-License-Identifier: BSD-3-Clause
//
// What distributed tensors are, computed from dense ones in the most direct way: the reference for redistribution.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/placement.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace cohort::test {

using Sizes = std::vector<std::int64_t>;
using Parts = std::vector<at::Tensor>;  ///< one for each rank of a mesh, the last mesh dimension varying fastest

inline std::vector<Sizes> cut_list(const Sizes& list, std::int64_t parts) {
  const auto count = static_cast<std::int64_t>(list.size());
  const auto chunk = (count + parts - 1) / parts;
  std::vector<Sizes> all(static_cast<std::size_t>(parts));
  for (std::int64_t i = 0; i < count; ++i) {
    all[static_cast<std::size_t>(i / chunk)].push_back(list[static_cast<std::size_t>(i)]);
  }
  return all;
}

/// The elements of a dimension that a rank holds, in order.
inline Sizes held(const Placement& shard, std::int64_t elements, std::int64_t ranks, std::int64_t rank) {
  Sizes all(static_cast<std::size_t>(elements));
  std::iota(all.begin(), all.end(), 0);
  Sizes mine;
  for (const auto& part : cut_list(all, shard.split_factor())) {
    const auto shares = cut_list(part, ranks);
    const auto& share = shares[static_cast<std::size_t>(rank)];
    mine.insert(mine.end(), share.begin(), share.end());
  }
  return mine;
}

inline at::Tensor index_of(const Sizes& list) {
  return at::tensor(list, at::kLong);
}

/// One mesh dimension: the tensors that its ranks hold of `whole`. Summands and the like are small integers, so that
/// double precision is exact but for averages.
inline Parts split(const at::Tensor& whole, const Placement& placement, std::int64_t ranks, std::mt19937& random) {
  Parts parts;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    if (placement.is_shard()) {
      const auto dim = placement.dim();
      parts.push_back(whole.index_select(dim, index_of(held(placement, whole.size(dim), ranks, rank))));
    } else {
      parts.push_back(whole.clone());
    }
  }
  if (!placement.is_partial()) return parts;
  const auto any = [&](int lowest, int highest) {
    std::vector<double> numbers(static_cast<std::size_t>(whole.numel()));
    for (auto& each : numbers) each = lowest + static_cast<int>(random() % static_cast<unsigned>(highest - lowest + 1));
    return at::tensor(numbers, at::kDouble).view(whole.sizes());
  };
  const auto reduction = placement.reduction();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    const auto next = (i + 1) % parts.size();
    switch (reduction) {
      case Placement::Reduction::sum:
        if (rank == 0) {
          for (std::size_t other = 1; other < parts.size(); ++other) parts[other].zero_();
        }
        [[fallthrough]];
      case Placement::Reduction::avg: {
        const auto moved = any(-4, 4);
        parts[i] += moved;
        parts[next] -= moved;
        break;
      }
      case Placement::Reduction::product: {
        if (rank == 0) break;
        parts[i] = any(0, 1) * 2 - 1;
        parts[0] *= parts[i];
        break;
      }
      case Placement::Reduction::max:
        if (rank != ranks / 2) parts[i] -= any(0, 5);
        break;
      case Placement::Reduction::min:
        if (rank != ranks / 2) parts[i] += any(0, 5);
        break;
    }
  }
  return parts;
}

/// The reverse: what the parts of the ranks of one mesh dimension are together; `elements` of the sharded dimension.
inline at::Tensor join(const Parts& parts, const Placement& placement, std::int64_t elements) {
  if (placement.is_replicate()) return parts.at(0);
  if (placement.is_shard()) {
    const auto dim = placement.dim();
    auto sizes = parts.at(0).sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = elements;
    auto whole = at::full(sizes, -12345.0, parts.at(0).options());
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      whole.index_copy_(
          dim,
          index_of(held(placement, elements, static_cast<std::int64_t>(parts.size()), static_cast<std::int64_t>(rank))),
          parts[rank]);
    }
    return whole;
  }
  const auto all = at::stack(parts);
  switch (placement.reduction()) {
    case Placement::Reduction::sum:
      return all.sum(0);
    case Placement::Reduction::avg:
      return all.mean(0);
    case Placement::Reduction::product:
      return all.prod(0);
    case Placement::Reduction::max:
      return std::get<0>(all.max(0));
    case Placement::Reduction::min:
      break;
  }
  return std::get<0>(all.min(0));
}

/// The parts of all ranks of a mesh.
inline Parts distribute_dense(const at::Tensor& whole, const Placements& placements, const Sizes& shape,
                              std::mt19937& random) {
  Parts parts{whole};
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    Parts next;
    for (const auto& part : parts) {
      for (auto& each : split(part, placements[dim], shape[dim], random)) next.push_back(each);
    }
    parts = std::move(next);
  }
  return parts;
}

/// The size that the sharded dimension has, at the place of a rank, before mesh dimension `mesh_dim` cuts it.
inline std::int64_t elements_before(const Sizes& sizes, const Placements& placements, const Sizes& shape,
                                    std::size_t mesh_dim, std::int64_t rank) {
  const auto dim = placements[mesh_dim].dim();
  auto elements = sizes[static_cast<std::size_t>(dim)];
  auto ranks_inside = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  for (std::size_t outer = 0; outer < mesh_dim; ++outer) {
    ranks_inside /= shape[outer];
    const auto index = rank / ranks_inside % shape[outer];
    if (!placements[outer].is_shard(dim)) continue;
    elements = static_cast<std::int64_t>(held(placements[outer], elements, shape[outer], index).size());
  }
  return elements;
}

/// The whole tensor: undoes the mesh dimensions from the last to the first.
inline at::Tensor join_dense(Parts parts, const Placements& placements, const Sizes& shape, const Sizes& sizes) {
  std::int64_t ranks_inside = 1;
  for (auto dim = shape.size(); dim-- > 0;) {
    Parts next;
    const auto count = static_cast<std::size_t>(shape[dim]);
    for (std::size_t first = 0; first < parts.size(); first += count) {
      const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(first);
      const auto elements =
          placements[dim].is_shard()
              ? elements_before(sizes, placements, shape, dim, static_cast<std::int64_t>(first) * ranks_inside)
              : 0;
      next.push_back(join(Parts(begin, begin + static_cast<std::ptrdiff_t>(count)), placements[dim], elements));
    }
    ranks_inside *= shape[dim];
    parts = std::move(next);
  }
  return parts.at(0);
}

inline at::Tensor numbered(const Sizes& sizes) {
  const auto count = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  return at::arange(1, count + 1, at::kDouble).view(sizes);
}

}  // namespace cohort::test
