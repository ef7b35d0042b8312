// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) The GPT of examples/14_tensor_parallel.cpp on CUDA memory: losses and parameters of the same model in one
// process.
#include <cohort/torch/ddp.h>
#include <cohort/torch/parallelize.h>
#include <torch/torch.h>

#include "../../../examples/parallel_gpt.h"
#include "torch/gpu/gpu_mesh.h"

namespace cohort::test {
namespace {

using example::Gpt;
using TensorParallelOn = OnTheGpuOfSize;

struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

Batch batch_of(int step, const example::GptSizes& sizes) {
  const auto text = (at::arange(4 * (sizes.context + 1)).view({4, -1}) * (step + 3)).remainder(sizes.letters);
  return {text.narrow(1, 0, sizes.context).contiguous().to(the_gpu),
          text.narrow(1, 1, sizes.context).contiguous().to(the_gpu)};
}

std::shared_ptr<Gpt> make_gpt() {
  torch::manual_seed(1);
  auto net = std::make_shared<Gpt>();
  net->to(the_gpu, at::kDouble);
  return net;
}

double dense_step(Gpt& dense, torch::optim::Optimizer& optimizer, const Batch& batch) {
  optimizer.zero_grad();
  const auto loss = dense.loss(batch.tokens, batch.targets);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

void expect_same_parameters(Gpt& net, Gpt& dense) {
  for (const auto& item : dense.named_parameters()) {
    const auto whole = DTensor(net.named_parameters()[item.key()]).full_tensor();
    EXPECT_TRUE(at::allclose(whole.detach(), item.value().detach(), 1e-6, 1e-8)) << item.key();
  }
}

/// Both dimensions by the rules of distributed tensors: the batch is sharded over "dp".
TEST_P(TensorParallelOn, GpusTrainAGptLikeOneProcess) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto mesh = gpu_mesh(group, {group->size() / 2, 2}, {"dp", "tp"});
    const auto dense = make_gpt();
    const auto net = make_gpt();
    distribute_module(*net, mesh, example::placements_of_parameter);
    EXPECT_TRUE(DTensor(net->head->weight).to_local().is_cuda());
    torch::optim::AdamW dense_optimizer(dense->parameters(), torch::optim::AdamWOptions(3e-3));
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(3e-3));
    const Placements by_batch{Shard(0), Replicate()};
    for (int step = 0; step < 6; ++step) {
      const auto batch = batch_of(step, net->sizes);
      const auto expected = dense_step(*dense, dense_optimizer, batch);
      const ImplicitReplication masks;
      optimizer.zero_grad();
      const auto loss =
          net->loss(distribute_tensor(batch.tokens, mesh, by_batch), distribute_tensor(batch.targets, mesh, by_batch));
      loss.backward();
      optimizer.step();
      ASSERT_NEAR(loss.item<double>(), expected, 1e-8) << "step " << step;
    }
    expect_same_parameters(*net, *dense);
  });
}

/// Tensor parallelism by a plan on "tp", and DistributedDataParallel on "dp".
TEST_P(TensorParallelOn, GpusTrainAGptBesideDataParallelism) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto mesh = gpu_mesh(group, {group->size() / 2, 2}, {"dp", "tp"});
    const auto dense = make_gpt();
    const auto net = make_gpt();
    parallelize_module(*net, mesh["tp"],
                       {{"words", RowwiseParallel()},
                        {"blocks.*.query_key_value", ColwiseParallel()},
                        {"blocks.*.mix", RowwiseParallel()},
                        {"blocks.*.widen", ColwiseParallel()},
                        {"blocks.*.narrow", RowwiseParallel()},
                        {"head", ColwiseParallel()}});
    {
      DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"]});
      torch::optim::SGD dense_optimizer(dense->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const auto rows = 4 / mesh.size("dp");
      for (int step = 0; step < 4; ++step) {
        const auto batch = batch_of(step, net->sizes);
        dense_step(*dense, dense_optimizer, batch);
        const auto mine = [&](const at::Tensor& all) {
          return distribute_tensor(all.narrow(0, rows * mesh.local_rank("dp"), rows).contiguous(), mesh["tp"]);
        };
        const ImplicitReplication masks;
        optimizer.zero_grad();
        const auto scores = ddp.forward(mine(batch.tokens)).view({-1, net->sizes.letters});
        torch::nn::functional::cross_entropy(scores, mine(batch.targets).view({-1})).backward();
        optimizer.step();
      }
    }
    expect_same_parameters(*net, *dense);
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, TensorParallelOn, ::testing::Values(GpuRanks{"nccl", 2}, GpuRanks{"nccl", 4}), name_of);

}  // namespace
}  // namespace cohort::test
