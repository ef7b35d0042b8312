// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <c10/core/TensorImpl.h>

namespace cohort {

/// Raises the tensor's autograd version, as its own in-place functions do, because its memory is written where autograd
/// does not see it. A backward that has saved the tensor before then throws "modified by an inplace operation" instead
/// of computing with other values. Views share the version with their base. An inference tensor has no version, and no
/// backward can have saved it.
inline void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

/// Another object for the same memory, with the same autograd version and without history.
inline at::Tensor alias_of(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto alias = at::alias(tensor);
  if (!tensor.is_inference() && !alias.is_inference()) {
    alias.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  }
  return alias;
}

}  // namespace cohort
