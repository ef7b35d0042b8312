// SPDX-License-Identifier: BSD-3-Clause
//
// What hooks share.
#pragma once

#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <string_view>

namespace cohort::hooks {

/// `group`, or the current one; none is an Error for the hook of this name.
ProcessGroupPtr group_for(ProcessGroupPtr group, std::string_view hook);

/// The average over the ranks, in place; of a sparse tensor a new one.
TensorFuture averaged(ProcessGroup& group, const at::Tensor& tensor);

/// Complex numbers as pairs of reals, in the same memory; others as they are.
at::Tensor as_real(const at::Tensor& tensor);

bool is_sparse(const at::Tensor& tensor);
/// A TypeError that names the hook unless the elements are real floats.
void expect_floats(const at::Tensor& tensor, std::string_view hook);

}  // namespace cohort::hooks
