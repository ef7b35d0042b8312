// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

#include <cmath>
#include <limits>

namespace gpt {

BlockImpl::BlockImpl(const Shape& shape) : heads_(shape.heads) {
  const auto width = shape.width;
  before_attention_ = register_module("before_attention", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  query_key_value_ = register_module("query_key_value", torch::nn::Linear(width, 3 * width));
  mix_ = register_module("mix", torch::nn::Linear(width, width));
  before_mlp_ = register_module("before_mlp", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  widen_ = register_module("widen", torch::nn::Linear(width, 4 * width));
  narrow_ = register_module("narrow", torch::nn::Linear(4 * width, width));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x, const torch::Tensor& future) {
  const auto y = x + attend(before_attention_->forward(x), future);
  return y + narrow_->forward(torch::relu(widen_->forward(before_mlp_->forward(y))));
}

torch::Tensor BlockImpl::attend(const torch::Tensor& x, const torch::Tensor& future) {
  const auto batch = x.size(0);
  const auto length = x.size(1);
  const auto width = x.size(2);
  // 3 x batch x heads x length x width of a head
  const auto parts =
      query_key_value_->forward(x).view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const auto scale = 1 / std::sqrt(static_cast<double>(width / heads_));
  const auto scores = torch::matmul(parts[0] * scale, parts[1].transpose(-2, -1));
  const auto weights = scores.masked_fill(future, -std::numeric_limits<float>::infinity()).softmax(-1);
  return mix_->forward(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, length, width}));
}

Gpt::Gpt(const Shape& shape) : shape_(shape) {
  letters_ = register_module("letters", torch::nn::Embedding(shape.letters, shape.width));
  places_ = register_module("places", torch::nn::Embedding(shape.context, shape.width));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < shape.layers; ++i) blocks_->push_back(Block(shape));
  last_ = register_module("last", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})));
  head_ = register_module("head", torch::nn::Linear(shape.width, shape.letters));
  future_ = register_buffer("future", torch::ones({shape.context, shape.context}, torch::kBool).triu(1));
  const torch::NoGradGuard no_grad;
  letters_->weight.mul_(0.1);
  places_->weight.mul_(0.1);
}

torch::Tensor Gpt::forward(const torch::Tensor& tokens) {
  const auto length = tokens.size(1);
  auto x = letters_->forward(tokens) + places_->weight.slice(0, 0, length);
  const auto future = future_.slice(0, 0, length).slice(1, 0, length);
  for (const auto& block : *blocks_) x = block->as<BlockImpl>()->forward(x, future);
  return head_->forward(last_->forward(x));
}

}  // namespace gpt
