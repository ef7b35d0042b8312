// SPDX-License-Identifier: BSD-3-Clause
//
// The differentiable ways between plain and distributed tensors, and from one layout to another.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/dtensor.h>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// Shares memory with `local`. Backward: the gradient is redistributed to `layout` and its part returned; where the layout
/// is Partial, the gradient is replicated, since every summand has the gradient of the sum.
at::Tensor from_local(const at::Tensor& local, const LayoutPtr& layout, at::IntArrayRef sizes);

/// Shares memory with the tensor. Backward: the part of the gradient is wrapped with `gradient`, without communication.
at::Tensor to_local(const at::Tensor& tensor, const LayoutPtr& gradient);

/// Backward: the gradient is redistributed to the layout that `tensor` has, with the same exception for Partial.
at::Tensor redistribute(const at::Tensor& tensor, const LayoutPtr& target, const RedistributeOptions& options);

}  // namespace cohort::dtensor
