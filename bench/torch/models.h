// SPDX-License-Identifier: BSD-3-Clause
//
// The models that DistributedDataParallel is measured with; ddp_peer.py has the same in Python.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

namespace cohort::benchmarks {

/// Has a step to itself: makes its own input and gives a loss.
struct BenchModel : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
  virtual torch::Tensor input() const = 0;
};

/// mlp_small, mlp_large, resnet18, many_small or sleeping; a std::runtime_error for other names.
std::shared_ptr<BenchModel> make_model(const std::string& name);

}  // namespace cohort::benchmarks
