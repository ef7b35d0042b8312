// SPDX-License-Identifier: BSD-3-Clause
//
// Modules whose parameters are distributed by a plan, against the same modules as they were.
#include <cohort/error.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/parallelize.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear query_key_value{nullptr}, mix{nullptr}, widen{nullptr}, narrow{nullptr};
  bool is_sequence_parallel = false;

  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    query_key_value = register_module("query_key_value", torch::nn::Linear(8, 24));
    mix = register_module("mix", torch::nn::Linear(8, 8));
    widen = register_module("widen", torch::nn::Linear(8, 16));
    narrow = register_module("narrow", torch::nn::Linear(16, 8));
  }
  at::Tensor placed(const at::Tensor& x, const Placement& placement) const {
    return is_sequence_parallel ? constrain(x, {placement}) : x;
  }
  at::Tensor attend(const at::Tensor& x) {
    const auto parts = query_key_value->forward(x).view({x.size(0), x.size(1), 4, 3, 2}).permute({3, 0, 2, 1, 4});
    const auto weights = torch::matmul(parts[0], parts[1].transpose(-2, -1)).softmax(-1);
    return mix->forward(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({x.size(0), x.size(1), 8}));
  }
  at::Tensor forward(const at::Tensor& input) {
    const auto x = placed(input, Shard(1));
    const auto y = x + placed(attend(placed(norm->forward(x), Replicate())), Shard(1));
    return y + placed(narrow->forward(torch::gelu(widen->forward(placed(norm->forward(y), Replicate())))), Shard(1));
  }
};
TORCH_MODULE(Block);

struct Model : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor places;

  Model() {
    words = register_module("words", torch::nn::Embedding(11, 8));
    blocks = register_module("blocks", torch::nn::ModuleList(Block(), Block()));
    head = register_module("head", torch::nn::Linear(8, 11));
    places = register_parameter("places", torch::randn({6, 8}));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = words->forward(tokens) + places;
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head->forward(x);
  }
};

/// The same on every rank, although the default generator belongs to all threads.
std::shared_ptr<Model> make_net() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  return std::make_shared<Model>();
}

const ParallelPlan plan{{"words", RowwiseParallel()},           {"blocks.*.query_key_value", ColwiseParallel()},
                        {"blocks.*.mix", RowwiseParallel()},    {"blocks.*.widen", ColwiseParallel()},
                        {"blocks.*.narrow", RowwiseParallel()}, {"head", ColwiseParallel()}};

struct Mode {
  const char* name;
  bool is_sequence_parallel;
  friend std::ostream& operator<<(std::ostream& out, const Mode& mode) { return out << mode.name; }
};

class Parallelized : public testing::TestWithParam<Mode> {};

TEST_P(Parallelized, ModulesTrainLikeDenseOnes) {
  for (const int ranks : {1, 2, 4}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {group->size()}, {"tp"}, {.process_group = group});
      const auto dense = make_net();
      const auto net = make_net();
      parallelize_module(*net, mesh, plan, {.members = {&net->places}});
      EXPECT_EQ(DTensor(net->words->weight).placements(), Placements{Shard(0)});
      EXPECT_EQ(DTensor(net->head->bias).placements(), Placements{Shard(0)});
      EXPECT_EQ(DTensor(net->places).placements(), Placements{Replicate()});
      const auto named = net->named_parameters();
      EXPECT_EQ(DTensor(named["blocks.1.mix.weight"]).placements(), Placements{Shard(1)});
      EXPECT_EQ(DTensor(named["blocks.1.mix.bias"]).placements(), Placements{Replicate()});
      EXPECT_TRUE(named["head.weight"].is_same(net->head->weight));
      for (const auto& block : *net->blocks)
        block->as<BlockImpl>()->is_sequence_parallel = GetParam().is_sequence_parallel;

      torch::optim::SGD dense_optimizer(dense->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 3; ++step) {
        const auto tokens = torch::arange(18).mul(step + 2).remainder(11).view({3, 6});
        const auto targets = torch::arange(18).mul(step + 5).remainder(11);
        const auto loss_of = [](Model& model, auto& how, const at::Tensor& x, const at::Tensor& y) {
          how.zero_grad();
          const auto loss = torch::nn::functional::cross_entropy(model.forward(x).reshape({-1, 11}), y);
          loss.backward();
          how.step();
          return loss.template item<double>();
        };
        const auto expected = loss_of(*dense, dense_optimizer, tokens, targets);
        EXPECT_NEAR(loss_of(*net, optimizer, distribute_tensor(tokens, mesh), distribute_tensor(targets, mesh)),
                    expected, 1e-5);
      }
      for (const auto& item : dense->named_parameters()) {
        EXPECT_TRUE(at::allclose(DTensor(net->named_parameters()[item.key()]).full_tensor(), item.value(), 1e-3, 1e-4))
            << item.key();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Parallelized, testing::Values(Mode{"Tensor", false}, Mode{"Sequence", true}),
                         [](const auto& each) { return each.param.name; });

TEST(Parallelize, BesideDataParallelism) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    const auto dense = make_net();
    const auto net = make_net();
    parallelize_module(*net, mesh["tp"], plan, {.members = {&net->places}});
    const auto before = net->head->weight;
    {
      EXPECT_ERROR(Error, DistributedDataParallel(net, {.device_mesh = mesh["tp"], .members = {&net->places}}),
                   "in common with the group");
      DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"], .members = {&net->places}});
      for (const auto& parameter : ddp.parameters()) EXPECT_FALSE(is_dtensor(parameter));
      torch::optim::SGD dense_optimizer(dense->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 3; ++step) {
        const auto tokens = torch::arange(24).mul(step + 2).remainder(11).view({4, 6});
        const auto targets = torch::arange(24).mul(step + 5).remainder(11).view({4, 6});
        dense_optimizer.zero_grad();
        const auto expected =
            torch::nn::functional::cross_entropy(dense->forward(tokens).view({-1, 11}), targets.view(-1));
        expected.backward();
        dense_optimizer.step();
        const auto mine = [&](const at::Tensor& all) {
          return distribute_tensor(all.narrow(0, 2 * mesh.local_rank("dp"), 2).contiguous(), mesh["tp"]);
        };
        optimizer.zero_grad();
        const auto loss =
            torch::nn::functional::cross_entropy(ddp.forward(mine(tokens)).view({-1, 11}), mine(targets).view(-1));
        loss.backward();
        optimizer.step();
        // The mean of both replicas' losses.
        auto mean = torch::full({1}, loss.item<double>());
        mesh.group("dp")->all_reduce(mean, {.op = ReduceOp::avg()});
        EXPECT_NEAR(mean.item<double>(), expected.item<double>(), 1e-5);
      }
    }
    // The module has its own parameters again, with the trained values.
    EXPECT_TRUE(net->head->weight.is_same(before));
    for (const auto& item : dense->named_parameters()) {
      EXPECT_TRUE(at::allclose(DTensor(net->named_parameters()[item.key()]).full_tensor(), item.value(), 1e-3, 1e-4))
          << item.key();
    }
  });
}

TEST(Parallelize, RefusesWithoutChangingAnything) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {"tp"}, {.process_group = group});
    const auto net = make_net();
    EXPECT_ERROR(ValueError,
                 parallelize_module(*net, mesh, {{"blocks.*.typo", ColwiseParallel()}}, {.members = {&net->places}}),
                 "no module is called \"blocks.*.typo\"");
    EXPECT_ERROR(ValueError,
                 parallelize_module(*net, mesh, {{"blocks.*.norm", ColwiseParallel()}}, {.members = {&net->places}}),
                 "no column-parallel style");
    EXPECT_ERROR(Error, parallelize_module(*net, mesh, plan), "\"places\" of");
    EXPECT_ERROR(Error, parallelize_module(*net, init_device_mesh("cpu", {1, 2}, {}, {.process_group = group}), plan),
                 "the mesh has 2 dimensions");
    for (const auto& parameter : net->parameters()) EXPECT_FALSE(is_dtensor(parameter));
    distribute_module(*net, mesh, {}, {.members = {&net->places}});
    for (const auto& parameter : net->parameters()) EXPECT_EQ(DTensor(parameter).placements(), Placements{Replicate()});
    EXPECT_ERROR(Error, distribute_module(*net, mesh, {}, {.members = {&net->places}}), "distributed once");
  });
}

}  // namespace
}  // namespace cohort::test
