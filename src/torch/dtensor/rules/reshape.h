// SPDX-License-Identifier: BSD-3-Clause
//
// How a sharded tensor is viewed with other sizes. The sizes are cut into the smallest groups of neighbouring
// dimensions that have equally many elements before and after:
// ```text
//   (2, 3, 8)  ->  (6, 4, 2):   2 x 3 -> 6   and   8 -> 4 x 2
// ```
// Within a group, a shard of a dimension is a shard of the group's elements, strided by the number of elements that the
// dimensions before it have, and becomes a shard of the dimension after the view that has the same number of elements
// before it. So a batch of sequences (4, 6, C) sharded in the sequences, S(1), becomes rows (24, C) as _S(0, 4), and
// (4, 6, C) sharded as S(1) again. The ranks must divide the dimension evenly, unless it is the last of its group.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <optional>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// The sizes with -1 replaced; nullopt if they do not fit the number of elements.
std::optional<c10::DimVector> inferred_sizes(at::IntArrayRef from, at::IntArrayRef to);

struct Reshaped {
  /// The first mesh dimension whose shards would not be shards of the result; the rest is then not filled in.
  std::optional<std::size_t> refused;
  Placements placements;
  /// For each dimension of the result: the number of ranks that divide it evenly.
  c10::DimVector ranks;
  /// For each dimension of the result that is then divided unevenly: the dimension that it comes from, and the size
  /// that was divided; -1 for the others.
  c10::DimVector uneven_source;
  c10::DimVector uneven_size;
};

Reshaped reshape(at::IntArrayRef from, at::IntArrayRef to, const Layout& layout);

/// The sizes of the local part of the result.
c10::DimVector reshaped_local_sizes(const Reshaped& reshaped, at::IntArrayRef to, at::IntArrayRef local);

}  // namespace cohort::dtensor
