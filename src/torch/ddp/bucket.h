// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients that travel together: one piece of memory, of the group where its backend has some to give, with a view of
// each parameter's shape and strides in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cohort::ddp {

/// Uninitialised, from the group's backend if that has memory to give, else from the tensors' own allocator.
at::Tensor allocate_flat(ProcessGroup& group, std::int64_t elements, const at::TensorOptions& options,
                         bool may_be_of_group);

/// `flat` from `offset` on, as something that looks like `like`: with its strides where it is dense. Autograd does not
/// know it for a view, so that zero_grad() may detach it.
at::Tensor view_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like);

struct Bucket {
  std::vector<std::size_t> parameters{};  ///< their indices, by slot
  std::size_t limit = 0;
  bool is_sparse = false;
  bool scales = false;                  ///< the division is part of the reduction
  at::Tensor flat{};                    ///< of a sparse one the gradient itself, while it is reduced
  std::vector<at::Tensor> views{};      ///< by slot; none of a sparse one
  std::vector<std::int64_t> offsets{};  ///< by slot, in elements

  // Of one backward.
  std::size_t pending = 0;
  std::vector<std::size_t> uncopied{};  ///< slots whose gradients are copied together when all are there
  /// Gradients of parameters that this rank did not use, by slot, as they were before the reduction.
  std::vector<std::pair<std::size_t, at::Tensor>> kept{};
  void* stream = nullptr;  ///< of a device: where its last gradient was made
  bool is_skipped = false;
  std::optional<Work> work{};
  std::optional<TensorFuture> future{};  ///< of a hook

  void reset() {
    pending = parameters.size();
    uncopied.clear();
    kept.clear();
    is_skipped = false;
    work.reset();
    future.reset();
    if (is_sparse) flat = at::Tensor();
  }
  std::size_t bytes() const { return flat.defined() && !is_sparse ? flat.nbytes() : 0; }
};

/// For a dense bucket of these parameters.
Bucket make_dense_bucket(ProcessGroup& group, std::vector<std::size_t> indices, std::span<const at::Tensor> parameters,
                         std::size_t limit, bool may_be_of_group);

}  // namespace cohort::ddp
