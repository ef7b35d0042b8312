// SPDX-License-Identifier: BSD-3-Clause
//
// Copies gradients into buckets, without libtorch's dispatcher where that is possible.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/torch/capture_host.h>

#include <cstring>
#include <vector>

#include "torch/compat/features.h"
#include "torch/written.h"

namespace cohort::ddp {

/// Whether the memory holds the tensor's values: a complex tensor may be a conjugate that is not computed yet.
inline bool is_plain(const at::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg();
}

inline bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() && is_plain(a) &&
         is_plain(b);
}

/// Copies memory directly if both are on the host and have the same layout: calling copy_ on a tensor costs more than
/// copying most gradients. A step that is captured needs the operator.
inline void copy_gradient(const at::Tensor& to, const at::Tensor& from) {
  if (!is_capturing() && to.is_cpu() && from.is_cpu() && to.scalar_type() == from.scalar_type() &&
      to.strides() == from.strides() && from.is_non_overlapping_and_dense() && is_plain(to) && is_plain(from)) {
    if (to.nbytes() > 0) std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
    mark_written(to);
    return;
  }
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

/// Copies many gradients. On a GPU one kernel copies about a hundred of them, if libtorch has it, since
/// launching one kernel for each takes longer than copying.
inline void copy_gradients(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
#if COHORT_TORCH_HAS_FOREACH_COPY
  if (!to.empty() && to.front().is_cuda()) {
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(to, from);
    return;
  }
#endif
  for (std::size_t i = 0; i < to.size(); ++i) copy_gradient(to[i], from[i]);
}

inline void clear_gradient(const at::Tensor& view) {
  if (!is_capturing() && view.is_cpu() && view.is_non_overlapping_and_dense()) {
    if (view.nbytes() > 0) std::memset(view.data_ptr(), 0, view.nbytes());
    mark_written(view);
    return;
  }
  const at::NoGradGuard no_grad;
  view.zero_();
}

}  // namespace cohort::ddp
