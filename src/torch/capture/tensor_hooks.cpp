// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/tensor_hooks.h"

#include <algorithm>

namespace cohort::recording {

TensorHooks AutogradView::listed_hooks() const noexcept {
  const auto& list = *meta_->cpp_hooks_list_;
  const auto removed = std::count(list.begin(), list.end(), nullptr);  // one that was removed is empty
  if (static_cast<std::size_t>(removed) == list.size()) return {};
  return {.list = &list, .registered = list.size(), .removed = static_cast<std::size_t>(removed)};
}

}  // namespace cohort::recording
