// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <string>

namespace cohort::ddp {

/// The sum of all ranks' sparse gradients if every row they can have is among `ids` (ascending, the same on all ranks):
/// one dense all_reduce of these rows. An Error that names the parameter if the gradient has another row.
at::Tensor all_reduce_rows(ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& ids,
                           const std::string& parameter);

}  // namespace cohort::ddp
