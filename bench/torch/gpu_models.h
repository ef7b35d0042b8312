// SPDX-License-Identifier: BSD-3-Clause
//
// What gpu_price.cpp and capture_gpu.cpp measure with; gpu_price.py has the same models in Python.
#pragma once

#include <torch/cuda.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>

namespace cohort::benchmarks {

/// Milliseconds of one step, the device idle before and after.
inline double timed(const std::function<void()>& step) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  step();
  torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

struct Many : torch::nn::Module {
  Many() {
    for (int i = 0; i < 200; ++i) layers->push_back(torch::nn::Linear(256, 256));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

/// Twelve layers of width 1024, as torch.nn.TransformerEncoderLayer has them.
struct Transformer : torch::nn::Module {
  Transformer() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(1024, 16).dim_feedforward(4096).dropout(0);
    encoder =
        register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 12)));
  }
  at::Tensor forward(const at::Tensor& x) { return encoder->forward(x); }
  torch::nn::TransformerEncoder encoder{nullptr};
};

}  // namespace cohort::benchmarks
