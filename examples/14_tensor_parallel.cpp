// SPDX-License-Identifier: BSD-3-Clause
//
// Tensor parallelism: a small GPT (parallel_gpt.h) whose attention heads and hidden units are shared out among the
// ranks of a mesh dimension, while the other dimension shares out the batch. The losses are those of the same model in
// one process, which every rank computes as well.
//
//   cohort run -n 4 ./tensor_parallel                  2 x 2: data parallel x tensor parallel
//   cohort run -n 2 ./tensor_parallel                  1 x 2
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "parallel_gpt.h"

int main() {
  using namespace std::chrono_literals;
  const auto group = cohort::new_group("auto", 60s, "cpu");
  at::set_num_threads(1);
  const auto tensor_ranks = group->size() % 2 == 0 ? 2 : 1;
  const auto mesh = cohort::init_device_mesh("cpu", {group->size() / tensor_ranks, tensor_ranks}, {"dp", "tp"},
                                             {.process_group = group});

  torch::manual_seed(1);
  example::Gpt dense;
  torch::manual_seed(1);
  example::Gpt net;
  // Parameters lie on the whole mesh, replicated over "dp": their gradients are summed over the batch by the rules
  // themselves.
  cohort::distribute_module(net, mesh, example::placements_of_parameter);
  torch::optim::AdamW dense_optimizer(dense.parameters(), torch::optim::AdamWOptions(3e-3));
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(3e-3));

  constexpr std::int64_t batch = 4;
  const auto context = net.sizes.context;
  double worst = 0;
  for (int step = 0; step < 20; ++step) {
    const auto text =
        (torch::arange(batch * (context + 1)).view({batch, context + 1}) * (step + 3)).remainder(net.sizes.letters);
    const auto tokens = text.narrow(1, 0, context).contiguous();
    const auto targets = text.narrow(1, 1, context).contiguous();

    dense_optimizer.zero_grad();
    const auto expected = dense.loss(tokens, targets);
    expected.backward();
    dense_optimizer.step();

    const cohort::ImplicitReplication masks;
    const cohort::Placements by_batch{cohort::Shard(0), cohort::Replicate()};
    optimizer.zero_grad();
    const auto loss =
        net.loss(cohort::distribute_tensor(tokens, mesh, by_batch), cohort::distribute_tensor(targets, mesh, by_batch));
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
