// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace cohort::recording {

/// Which hooks a tensor has (at::Tensor::register_hook): a replay runs those of the recording, so others are a reason to
/// record anew.
struct TensorHooks {
  const void* list = nullptr;  ///< null if there are none
  std::size_t registered = 0;
  std::size_t removed = 0;
  friend bool operator==(const TensorHooks&, const TensorHooks&) = default;
};

TensorHooks hooks_of(const at::Tensor& tensor) noexcept;

}  // namespace cohort::recording
