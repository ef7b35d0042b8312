// SPDX-License-Identifier: BSD-3-Clause
//
// Making the ranks' models equal, and seeing to it that they can be.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <span>
#include <string>

namespace cohort::ddp {

/// All ranks have as many tensors, of the same sizes, strides and dtypes: an Error that names rank and parameter on
/// every rank otherwise. One exchange.
void check_replicas(ProcessGroup& group, std::span<const at::Tensor> tensors, std::span<const std::string> names);

/// `source`'s values for all. Large tensors travel as they lie, small ones together.
void broadcast_tensors(ProcessGroup& group, std::span<const at::Tensor> tensors, int source);

}  // namespace cohort::ddp
