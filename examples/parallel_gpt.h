// SPDX-License-Identifier: BSD-3-Clause
//
// A small GPT for tensor parallelism: an ordinary libtorch module, which also works on distributed tensors. The one
// thing that it heeds is the order of the columns of query_key_value.
#pragma once

#include <cohort/torch/dtensor.h>
#include <cohort/torch/parallelize.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace example {

struct GptSizes {
  std::int64_t letters = 24;
  std::int64_t context = 16;
  std::int64_t width = 32;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
};

struct BlockImpl : torch::nn::Module {
  GptSizes sizes;
  torch::nn::LayerNorm before_attention{nullptr}, before_mlp{nullptr};
  torch::nn::Linear query_key_value{nullptr}, mix{nullptr}, widen{nullptr}, narrow{nullptr};

  explicit BlockImpl(const GptSizes& with) : sizes(with) {
    const auto width = sizes.width;
    before_attention = register_module("before_attention", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    query_key_value = register_module("query_key_value", torch::nn::Linear(width, 3 * width));
    mix = register_module("mix", torch::nn::Linear(width, width));
    before_mlp = register_module("before_mlp", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    widen = register_module("widen", torch::nn::Linear(width, 4 * width));
    narrow = register_module("narrow", torch::nn::Linear(4 * width, width));
  }

  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& future) {
    const auto sequences = x.size(0);
    const auto length = x.size(1);
    const auto head = sizes.width / sizes.heads;
    // Head by head, so that a rank's share of the columns is whole heads: 3 x sequences x heads x length x width of a
    // head
    const auto parts =
        query_key_value->forward(x).view({sequences, length, sizes.heads, 3, head}).permute({3, 0, 2, 1, 4});
    const auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(head));
    const auto weights = scores.masked_fill(future, -std::numeric_limits<float>::infinity()).softmax(-1);
    return mix->forward(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({sequences, length, sizes.width}));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& future) {
    const auto y = x + attend(before_attention->forward(x), future);
    return y + narrow->forward(torch::gelu(widen->forward(before_mlp->forward(y))));
  }
};
TORCH_MODULE(Block);

struct Gpt : torch::nn::Module {
  GptSizes sizes;
  torch::nn::Embedding words{nullptr}, places{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm last{nullptr};
  torch::nn::Linear head{nullptr};

  explicit Gpt(const GptSizes& with = {}) : sizes(with) {
    words = register_module("words", torch::nn::Embedding(sizes.letters, sizes.width));
    places = register_module("places", torch::nn::Embedding(sizes.context, sizes.width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < sizes.layers; ++i) blocks->push_back(Block(sizes));
    last = register_module("last", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})));
    head = register_module("head", torch::nn::Linear(sizes.width, sizes.letters));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto context = sizes.context;
    const auto future = torch::ones({context, context}, torch::device(tokens.device()).dtype(torch::kBool)).triu(1);
    auto x = words->forward(tokens) + places->weight;
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x, future);
    return head->forward(last->forward(x));
  }

  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
    return torch::nn::functional::cross_entropy(forward(tokens).view({-1, sizes.letters}), targets.view({-1}));
  }
};

/// Where each parameter lies on a mesh of data parallel x tensor parallel ranks: heads and hidden units are shared out
/// over the second dimension, and so are the letters' scores, so that no rank holds those of the whole alphabet.
inline cohort::Placements placements_of_parameter(const std::string& name, const at::Tensor& /*tensor*/) {
  const auto ends_with = [&](std::string_view end) { return std::string_view(name).ends_with(end); };
  const auto is_column = ends_with("query_key_value.weight") || ends_with("query_key_value.bias") ||
                         ends_with("widen.weight") || ends_with("widen.bias") || ends_with("head.weight") ||
                         ends_with("head.bias");
  if (is_column) return {cohort::Replicate(), cohort::Shard(0)};
  if (ends_with("mix.weight") || ends_with("narrow.weight")) return {cohort::Replicate(), cohort::Shard(1)};
  return {};
}

}  // namespace example
