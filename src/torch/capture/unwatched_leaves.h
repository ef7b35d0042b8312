// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::recording {

/// Tensors that may get a gradient in the step, although nothing watches them: arguments, and parameters of modules
/// that the step uses without naming them. autograd gives a leaf its gradient without an operator, so that a replay
/// would not.
class UnwatchedLeaves {
 public:
  /// The tensor and the gradient that it has now. `name`: "tensor 2 of the arguments".
  void add(const at::Tensor& tensor, std::string name);
  /// Throws the CaptureError if one of them has another gradient now.
  void refuse_new_gradients() const;

 private:
  struct Leaf {
    std::string name;
    at::Tensor tensor;
    at::Tensor gradient;
    std::int64_t version;
  };
  std::vector<Leaf> leaves_;
};

}  // namespace cohort::recording
