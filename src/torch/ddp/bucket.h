// SPDX-License-Identifier: BSD-3-Clause
//
// A bucket holds gradients that are reduced together. They lie in one flat tensor, in memory of the process group where
// its backend provides some, and each parameter has a view of its own shape and strides into it.
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

/// An uninitialised tensor of one dimension, in memory of the group if that is wanted and the backend provides some,
/// otherwise from the allocator of the tensor's device.
at::Tensor allocate_flat(ProcessGroup& group, std::int64_t elements, const at::TensorOptions& options,
                         bool may_use_group_memory);

/// The part of `flat` that starts at `offset`, in the shape of `like` and with its strides if it is dense. Autograd
/// does not treat it as a view, so that zero_grad() can detach it.
at::Tensor view_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like);

struct Bucket {
  std::vector<std::size_t> parameters{};  ///< the parameters' indices, by slot
  std::size_t limit = 0;
  bool is_sparse = false;
  bool scales_in_reduction = false;  ///< the reduction divides by the number of ranks as well
  at::Tensor flat{};                 ///< in a sparse bucket the sparse gradient, while it is being reduced
  std::vector<at::Tensor> views{};   ///< by slot; empty in a sparse bucket

  // The state of one backward.
  std::size_t pending = 0;              ///< gradients that have not arrived yet
  std::vector<std::size_t> uncopied{};  ///< slots whose gradients are copied together once all of them are there
  /// Gradients of parameters that this rank did not use, by slot, as they were before the reduction.
  std::vector<std::pair<std::size_t, at::Tensor>> kept{};
  void* stream = nullptr;  ///< on a device: the stream on which the last gradient was computed
  bool is_skipped = false;
  std::optional<Work> work{};
  std::optional<TensorFuture> future{};  ///< the communication hook's result

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

/// A dense bucket for these parameters, which are chosen by their indices.
Bucket make_dense_bucket(ProcessGroup& group, std::vector<std::size_t> indices, std::span<const at::Tensor> parameters,
                         std::size_t limit, bool may_use_group_memory);

}  // namespace cohort::ddp
