// SPDX-License-Identifier: BSD-3-Clause
//
// The differentiable ways between plain and distributed tensors, and from one layout to another.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/dtensor.h>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// Shares memory with `local`. Backward: the gradient is redistributed to `layout` and its part returned; where the
/// layout is Partial, the gradient is replicated, since every summand has the gradient of the sum: the whole of it.
at::Tensor from_local(const at::Tensor& local, const LayoutPtr& layout, at::IntArrayRef sizes);

/// Shares memory with the tensor. Backward: the part of the gradient is wrapped with `gradient`, without communication.
at::Tensor to_local(const at::Tensor& tensor, const LayoutPtr& gradient);

/// Backward: the gradient is redistributed to the layout that `tensor` has, with the same exception for Partial, unless
/// it is that Partial already.
at::Tensor redistribute(const at::Tensor& tensor, const LayoutPtr& target, const RedistributeOptions& options);

/// If the tensor is a leaf that requires gradients, brings these to the tensor's own layout before they are
/// accumulated: one collective for each backward, where otherwise every use of the gradient in an optimizer would pay
/// for one. Does nothing the second time. Called where leaves are made, so that hooks of the user's see the result, and
/// where tensors are used, because nothing tells when requires_grad_() is called.
void redistribute_gradients_of(const at::Tensor& tensor);

/// If the tensor is a part that split() or unbind() returned: has the gradients of parts that were not used be
/// distributed zeros in backward. Where a gradient is missing libtorch makes plain ones, which nothing tells from a
/// tensor that differs between the ranks. Does nothing the second time.
void replace_missing_gradients_of(const at::Tensor& tensor);

}  // namespace cohort::dtensor
