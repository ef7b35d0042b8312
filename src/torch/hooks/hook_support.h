// SPDX-License-Identifier: BSD-3-Clause
//
// Functions that the communication hooks share.
#pragma once

#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <string_view>

namespace cohort::hooks {

/// `group`, or the current group if it is null; if there is none, an Error that names the hook.
ProcessGroupPtr group_for(ProcessGroupPtr group, std::string_view hook);

/// Starts averaging the tensor over the ranks, in place; a sparse tensor is averaged into a new one.
TensorFuture averaged(ProcessGroup& group, const at::Tensor& tensor);

/// A complex tensor as pairs of reals in the same memory; any other tensor as it is.
at::Tensor as_real(const at::Tensor& tensor);

bool is_sparse(const at::Tensor& tensor);
/// A TypeError that names the hook unless the elements are real floats.
void expect_floats(const at::Tensor& tensor, std::string_view hook);

/// For hooks that do different things in different iterations, which the host counts.
void refuse_to_capture_counting(std::string_view what);

}  // namespace cohort::hooks
