// SPDX-License-Identifier: BSD-3-Clause
//
// Moves the local part of a distributed tensor from one layout to another: plans the transitions (plan.h) and performs
// them, each with one collective or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// The result never shares memory with `local` unless the layouts are equal. Blocks until it is there; on a device,
/// orders the current stream. `sizes` are the global ones. The layouts have the same mesh.
at::Tensor redistribute_local(const at::Tensor& local, at::IntArrayRef sizes, const Layout& from, const Layout& to);

/// The sizes of this rank's part of a tensor of these global sizes, and where it begins in each dimension. (With a
/// strided shard the part is not contiguous in the global tensor, and the offset is that of its first element.)
std::vector<std::int64_t> local_sizes(at::IntArrayRef sizes, const Layout& layout);
std::vector<std::int64_t> local_offsets(at::IntArrayRef sizes, const Layout& layout);

}  // namespace cohort::dtensor
