// SPDX-License-Identifier: BSD-3-Clause
//
// Tensor parallelism: a small GPT whose attention heads and hidden units are shared out among the ranks of a mesh
// dimension, while the other dimension shares out the batch. The model is an ordinary libtorch module. The losses are
// those of the same model in one process, which every rank computes as well.
//
//   cohort run -n 4 ./tensor_parallel                  2 x 2: data parallel x tensor parallel
//   cohort run -n 2 ./tensor_parallel                  1 x 2
#include <cohort/cohort.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/parallelize.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace {

constexpr std::int64_t letters = 24;
constexpr std::int64_t context = 16;
constexpr std::int64_t width = 32;
constexpr std::int64_t heads = 4;
constexpr std::int64_t batch = 4;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm before_attention{nullptr}, before_mlp{nullptr};
  torch::nn::Linear query_key_value{nullptr}, mix{nullptr}, widen{nullptr}, narrow{nullptr};

  BlockImpl() {
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
    // Head by head, so that a rank's share of the columns is whole heads: 3 x sequences x heads x length x width of a head
    const auto parts =
        query_key_value->forward(x).view({sequences, length, heads, 3, width / heads}).permute({3, 0, 2, 1, 4});
    const auto scores =
        torch::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads));
    const auto weights = scores.masked_fill(future, -std::numeric_limits<float>::infinity()).softmax(-1);
    return mix->forward(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({sequences, length, width}));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& future) {
    const auto y = x + attend(before_attention->forward(x), future);
    return y + narrow->forward(torch::gelu(widen->forward(before_mlp->forward(y))));
  }
};
TORCH_MODULE(Block);

struct Gpt : torch::nn::Module {
  torch::nn::Embedding words{nullptr}, places{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm last{nullptr};
  torch::nn::Linear head{nullptr};

  Gpt() {
    words = register_module("words", torch::nn::Embedding(letters, width));
    places = register_module("places", torch::nn::Embedding(context, width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    last = register_module("last", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head = register_module("head", torch::nn::Linear(width, letters));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto future = torch::ones({context, context}, torch::kBool).triu(1);
    auto x = words->forward(tokens) + places->weight;
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x, future);
    return head->forward(last->forward(x));
  }
};

torch::Tensor loss_of(Gpt& net, const torch::Tensor& tokens, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(net.forward(tokens).view({-1, letters}), targets.view({-1}));
}

}  // namespace

int main() {
  using namespace std::chrono_literals;
  const auto group = cohort::new_group("auto", 60s, "cpu");
  at::set_num_threads(1);
  const auto tensor_ranks = group->size() % 2 == 0 ? 2 : 1;
  const auto mesh = cohort::init_device_mesh("cpu", {group->size() / tensor_ranks, tensor_ranks}, {"dp", "tp"},
                                             {.process_group = group});

  torch::manual_seed(1);
  Gpt dense;
  torch::manual_seed(1);
  Gpt net;
  // Heads and hidden units over "tp"; the letters' scores too, so that no rank holds those of the whole alphabet. Parameters
  // lie on the whole mesh, replicated over "dp": their gradients are summed over the batch by the rules themselves.
  cohort::distribute_module(net, mesh, [](const std::string& name, const at::Tensor&) -> cohort::Placements {
    const auto ends_with = [&](std::string_view end) { return std::string_view(name).ends_with(end); };
    const auto column = ends_with("query_key_value.weight") || ends_with("query_key_value.bias") ||
                        ends_with("widen.weight") || ends_with("widen.bias") || ends_with("head.weight") ||
                        ends_with("head.bias");
    if (column) return {cohort::Replicate(), cohort::Shard(0)};
    if (ends_with("mix.weight") || ends_with("narrow.weight")) return {cohort::Replicate(), cohort::Shard(1)};
    return {};
  });
  torch::optim::AdamW dense_optimizer(dense.parameters(), torch::optim::AdamWOptions(3e-3));
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(3e-3));

  double worst = 0;
  for (int step = 0; step < 20; ++step) {
    const auto text = (torch::arange(batch * (context + 1)).view({batch, context + 1}) * (step + 3)).remainder(letters);
    const auto tokens = text.narrow(1, 0, context).contiguous();
    const auto targets = text.narrow(1, 1, context).contiguous();

    dense_optimizer.zero_grad();
    const auto expected = loss_of(dense, tokens, targets);
    expected.backward();
    dense_optimizer.step();

    const cohort::ImplicitReplication masks;
    const cohort::Placements by_batch{cohort::Shard(0), cohort::Replicate()};
    optimizer.zero_grad();
    const auto loss = loss_of(net, cohort::distribute_tensor(tokens, mesh, by_batch),
                              cohort::distribute_tensor(targets, mesh, by_batch));
    loss.backward();
    optimizer.step();

    const auto value = loss.item<double>();  // the loss is a sum over the ranks: all of them take part
    worst = std::max(worst, std::abs(value - expected.item<double>()));
    if (group->rank() == 0 && step % 5 == 4) {
      std::printf("step %2d: loss %.6f, in one process %.6f\n", step + 1, value, expected.item<double>());
    }
  }
  if (group->rank() == 0) std::printf("largest difference of a loss: %.1e\n", worst);
  return worst < 1e-4 ? 0 : 1;
}
