// SPDX-License-Identifier: BSD-3-Clause
//
// Where this rank's part of a distributed tensor lies in the whole, as boxes: consecutive indices in each dimension. A
// part is one box, unless a strided shard leaves gaps in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

struct LocalBox {
  std::vector<std::int64_t> offsets{};        ///< in the whole tensor
  std::vector<std::int64_t> local_offsets{};  ///< in this rank's part
  std::vector<std::int64_t> sizes{};
};

/// They cover the part and have elements: an empty part, and that of a rank outside the mesh, has no boxes. `sizes` are
/// the global ones. On a mesh dimension with a Partial, every rank holds everything.
std::vector<LocalBox> local_boxes(at::IntArrayRef sizes, const Layout& layout);

}  // namespace cohort::dtensor
