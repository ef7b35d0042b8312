// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/tensor_hooks.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace cohort::recording {

TensorHooks hooks_of(const at::Tensor& tensor) noexcept {
  const auto* const meta =
      static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  if (meta == nullptr || meta->cpp_hooks_list_ == nullptr) [[likely]]
    return {};
  const auto& list = *meta->cpp_hooks_list_;
  const auto removed = std::count(list.begin(), list.end(), nullptr);  // one that was removed is empty
  if (static_cast<std::size_t>(removed) == list.size()) return {};
  return {.list = &list, .registered = list.size(), .removed = static_cast<std::size_t>(removed)};
}

}  // namespace cohort::recording
