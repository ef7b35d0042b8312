// SPDX-License-Identifier: BSD-3-Clause
//
// Distributes the tensor of one rank over a mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// This rank's part. The values are those of the rank whose index is `src` on every mesh dimension: mesh dimension
/// after mesh dimension it scatters (Shard) or broadcasts (Replicate), among the ranks that hold its values by then.
/// `full` has the same sizes, dtype and device on all ranks. Without `src`, every rank takes its part of its own
/// tensor, and nothing is communicated.
///
/// The result is contiguous and never shares memory with `full`; it is empty on a rank outside the mesh. Throws Error
/// for a Partial, and ValueError if `src` is no index of some mesh dimension.
at::Tensor distribute_local(const at::Tensor& full, const Layout& layout, std::optional<std::int64_t> src);

}  // namespace cohort::dtensor
