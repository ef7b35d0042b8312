// SPDX-License-Identifier: BSD-3-Clause
//
// Checks that the ranks' models match, and makes them equal.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <span>
#include <string>

namespace cohort::ddp {

/// Collective, in one exchange. An Error on every rank that names rank and parameter, unless all ranks have the same
/// number of tensors with the same sizes, strides and dtypes.
void check_replicas(ProcessGroup& group, std::span<const at::Tensor> tensors, std::span<const std::string> names);

/// Gives all ranks the source's values. Large tensors are sent in place, small ones together. The
/// tensors' versions rise on all ranks.
void broadcast_tensors(ProcessGroup& group, std::span<const at::Tensor> tensors, int source);

}  // namespace cohort::ddp
