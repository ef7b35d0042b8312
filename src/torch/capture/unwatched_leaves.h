// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cohort::recording {

/// Arguments of a step that may get a gradient in it: a replay would not put it there.
class LeafArguments {
 public:
  /// The tensor and the gradient that it has before the step. `number`: among all tensors of the call, from 1 on.
  void add(const at::Tensor& tensor, std::size_t number);
  /// Throws the CaptureError if one of them has another gradient now.
  void refuse_new_gradients() const;

 private:
  struct Leaf {
    std::size_t number;
    at::Tensor tensor;
    at::Tensor gradient;
    std::int64_t version;
  };
  std::vector<Leaf> leaves_;
};

}  // namespace cohort::recording
