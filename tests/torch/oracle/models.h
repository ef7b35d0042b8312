// SPDX-License-Identifier: BSD-3-Clause
//
// The models of reference.py, layer by layer and in the same order, so that parameter i is the same one in both.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace cohort::test {

struct Mlp : torch::nn::Module {
  Mlp() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    register_module("out", out);
  }
  torch::Tensor forward(torch::Tensor x, std::int64_t, int) {
    x = torch::relu(first(x));
    x = torch::relu(second(x));
    x = torch::relu(third(x));
    return out(x);
  }
  torch::nn::Linear first{64, 256}, second{256, 512}, third{512, 512}, out{512, 10};
};

struct ConvNet : torch::nn::Module {
  ConvNet() {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    register_module("out", out);
  }
  torch::Tensor forward(torch::Tensor x, std::int64_t, int) {
    x = torch::relu(norm1(conv1(x)));
    x = torch::relu(norm2(conv2(x)));
    return out(x.mean({2, 3}));
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm1{8};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 16, 3)};
  torch::nn::BatchNorm2d norm2{16};
  torch::nn::Linear out{16, 10};
};

struct Transformer : torch::nn::Module {
  Transformer() {
    register_module("words", words);
    register_module("layer1", layer1);
    register_module("layer2", layer2);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x, std::int64_t, int) {
    return out(layer2(layer1(words(x.transpose(0, 1)))).mean(0));
  }
  static torch::nn::TransformerEncoderLayerOptions options() {
    return torch::nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0.0);
  }
  torch::nn::Embedding words{40, 32};
  torch::nn::TransformerEncoderLayer layer1{options()}, layer2{options()};
  torch::nn::Linear out{32, 10};
};

struct SparseWords : torch::nn::Module {
  SparseWords() {
    register_module("words", words);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x, std::int64_t, int) { return out(words(x).mean(1)); }
  torch::nn::Embedding words{torch::nn::EmbeddingOptions(40, 32).sparse(true)};
  torch::nn::Linear out{32, 10};
};

/// Each rank takes another branch at each step; the third branch is taken by rank 0 at each fifth step alone.
struct Branches : torch::nn::Module {
  Branches() {
    register_module("first", first);
    register_module("left", left);
    register_module("right", right);
    register_module("seldom", seldom);
  }
  torch::Tensor forward(torch::Tensor x, std::int64_t step, int rank) {
    x = torch::relu(first(x));
    const auto y = (step + rank) % 2 == 0 ? left(x) : right(x);
    return rank == 0 && step % 5 == 0 ? y + seldom(x) : y;
  }
  torch::nn::Linear first{64, 32}, left{32, 10}, right{32, 10}, seldom{32, 10};
};

}  // namespace cohort::test
