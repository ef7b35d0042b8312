// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "torch/compat/features.h"

#if !COHORT_TORCH_SINCE(2, 0)
#include <c10/util/C++17.h>
#endif

namespace cohort {

/// The key under which an optimizer keeps a parameter's state: text before libtorch 2.0, then a pointer.
inline auto state_key(const at::Tensor& parameter) {
#if COHORT_TORCH_SINCE(2, 0)
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#endif
}

}  // namespace cohort
