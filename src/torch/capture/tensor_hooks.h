// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>

namespace cohort::recording {

/// Which hooks a tensor has (at::Tensor::register_hook): a replay runs those of the recording, so others are a reason
/// to record anew.
struct TensorHooks {
  const void* list = nullptr;  ///< null if there are none
  std::size_t registered = 0;
  std::size_t removed = 0;
  friend bool operator==(const TensorHooks&, const TensorHooks&) = default;
};

/// What autograd knows of a tensor. at::Tensor's own functions are calls into libtorch each, which is most of what they
/// cost where a thousand parameters are looked at.
class AutogradView {
 public:
  explicit AutogradView(const at::Tensor& tensor)
      : meta_(static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta())) {}

  bool requires_grad() const noexcept { return meta_ != nullptr && (meta_->requires_grad_ || meta_->grad_fn_); }
  TensorHooks hooks() const noexcept {
    if (meta_ == nullptr || meta_->cpp_hooks_list_ == nullptr) [[likely]]
      return {};
    return listed_hooks();
  }
  /// Undefined if there is none. Without at::Tensor's warning about gradients of tensors that are no leaves.
  const at::Tensor& gradient() const noexcept {
    static const at::Tensor none;
    return meta_ != nullptr ? meta_->grad_ : none;
  }

 private:
  TensorHooks listed_hooks() const noexcept;
  const torch::autograd::AutogradMeta* meta_;
};

inline TensorHooks hooks_of(const at::Tensor& tensor) noexcept {
  return AutogradView(tensor).hooks();
}

}  // namespace cohort::recording
