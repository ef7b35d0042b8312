// SPDX-License-Identifier: BSD-3-Clause
//
// Moves the local part of a distributed tensor from one layout to another: plans the transitions (plan.h) and performs
// them, each with one collective or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "torch/dtensor/layout.h"
#include "torch/functional/on_group.h"

namespace cohort::dtensor {

/// The result is contiguous and never shares memory with `local`, unless the layouts are equal or this rank is not in
/// the mesh: then it is `local`. Blocks until it is there, unless asked otherwise; on a device, orders the current
/// stream. `sizes` are the global ones. The layouts have the same mesh. Throws Error if a Partial is asked for that
/// cannot be (plan.h). Not differentiable: to be called below autograd.
///
/// With Completion::async the last collective of the plan is only begun, and the result may be a tensor in flight.
///
/// `why` is the operator that needs the other layout. If it is given and debug_level() is detail, the redistribution is
/// logged, with the bytes that this rank has in the collectives (of input and output of each the larger).
at::Tensor redistribute_local(const at::Tensor& local, at::IntArrayRef sizes, const Layout& from, const Layout& to,
                              std::string_view why = {},
                              functional::Completion completion = functional::Completion::blocking);

/// The sizes of this rank's part of a tensor of these global sizes, and where it begins in each dimension. (With a
/// strided shard the part is not contiguous in the global tensor, and the offset is that of its first element.) An
/// empty part begins where the dimension, as far as the other mesh dimensions have left it, ends. On a rank outside the
/// mesh both are {0}.
std::vector<std::int64_t> local_sizes(at::IntArrayRef sizes, const Layout& layout);
std::vector<std::int64_t> local_offsets(at::IntArrayRef sizes, const Layout& layout);

}  // namespace cohort::dtensor
