// SPDX-License-Identifier: BSD-3-Clause
//
// A GPT: letters in, for each of them the odds of the next letter out. A libtorch module like any other; nothing in it
// knows that several processes will train it.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace gpt {

struct Shape {
  std::int64_t letters = 0;
  std::int64_t context = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;
};

/// Attention, then two linear layers; both added to what comes in.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const Shape& shape);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& future);

 private:
  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& future);

  std::int64_t heads_;
  torch::nn::LayerNorm before_attention_{nullptr};
  torch::nn::Linear query_key_value_{nullptr};
  torch::nn::Linear mix_{nullptr};
  torch::nn::LayerNorm before_mlp_{nullptr};
  torch::nn::Linear widen_{nullptr};
  torch::nn::Linear narrow_{nullptr};
};
TORCH_MODULE(Block);

class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const Shape& shape);

  /// sequences x length (at most the context) → sequences x length x letters
  torch::Tensor forward(const torch::Tensor& tokens);
  const Shape& shape() const noexcept { return shape_; }

 private:
  Shape shape_;
  torch::nn::Embedding letters_{nullptr};
  torch::nn::Embedding places_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm last_{nullptr};
  torch::nn::Linear head_{nullptr};
  torch::Tensor future_;  ///< true where a letter must not look, since it comes later
};

}  // namespace gpt
