// SPDX-License-Identifier: BSD-3-Clause
//
// The TensorImpl of a distributed tensor: global sizes, this rank's part, and how it lies on the mesh. It has no
// storage, so that a kernel that is not meant for it throws instead of reading wrong memory.
//
// Its key set contains Fake, whose fallback (torch/dispatch/fallback.h) sits below autograd and above all kernels:
// every operator on it, in forward, backward and optimizers, arrives there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/DimVector.h>

#include <typeinfo>

#include "torch/dispatch/fallback.h"
#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

class DTensorImpl final : public c10::TensorImpl {
 public:
  /// `local` has no autograd history. The strides are those that the whole tensor would have. libtorch decides by them
  /// whether a view is possible and a copy needed, so they must be the same on all ranks, and never follow from the
  /// local part: if it is empty or has sizes of 1, its strides say something else there.
  DTensorImpl(at::Tensor local, LayoutPtr layout, at::IntArrayRef sizes, at::IntArrayRef strides);

  const at::Tensor& local() const noexcept { return local_; }
  const LayoutPtr& layout() const noexcept { return layout_; }

  /// A view to autograd and the user, whose memory is its own nevertheless: it must not be written.
  bool is_copied_view() const noexcept { return is_copied_view_; }
  void set_copied_view() noexcept { is_copied_view_ = true; }

  /// That its gradients are redistributed (autograd.h): of this tensor alone, not of those detached from it.
  bool has_gradient_hook() const noexcept { return has_gradient_hook_; }
  void set_gradient_hook() const noexcept { has_gradient_hook_ = true; }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;

 private:
  const char* tensorimpl_type_name() const override { return "cohort::DTensor"; }

  at::Tensor local_;
  LayoutPtr layout_;
  bool is_copied_view_ = false;
  mutable bool has_gradient_hook_ = false;
};

/// Strides of a dense tensor of these sizes, in row-major order or with the dimensions in the order of `like` in
/// memory. An expanded dimension (stride 0) stays one.
c10::DimVector dense_strides(at::IntArrayRef sizes);
c10::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef like);

inline bool is_distributed_impl(const c10::TensorImpl& impl) noexcept {
  // A plain tensor can come to have the key, by set_data(), but not the type.
  return impl.key_set().has(wrapper_key) && typeid(impl) == typeid(DTensorImpl);
}

/// Null if the tensor is undefined or not distributed.
inline const DTensorImpl* find_impl(const at::Tensor& tensor) noexcept {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  return is_distributed_impl(impl) ? static_cast<const DTensorImpl*>(&impl) : nullptr;
}

inline at::Tensor wrap(at::Tensor local, LayoutPtr layout, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::Tensor(c10::make_intrusive<DTensorImpl>(std::move(local), std::move(layout), sizes, strides));
}

/// Row-major.
inline at::Tensor wrap(at::Tensor local, LayoutPtr layout, at::IntArrayRef sizes) {
  return wrap(std::move(local), std::move(layout), sizes, dense_strides(sizes));
}

}  // namespace cohort::dtensor
