// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/capture_watch.h>

#include <cstddef>
#include <span>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// What of its caller's memory a step writes: arguments, gradients, parameters and other tensors that existed before
/// it, itself or through views. A replay calls kernels below autograd, so it has to tell autograd.
class CallerMemory {
 public:
  CallerMemory(const Program& program, std::span<const WatchedTensor> parameters);

  /// Raises the versions, before a replay: if that fails half-way, something has been written all the same.
  void mark_written(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients) const;

 private:
  std::vector<std::size_t> arguments_;
  std::vector<std::size_t> gradients_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace cohort::recording
