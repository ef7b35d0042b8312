// SPDX-License-Identifier: BSD-3-Clause
//
// The training loop. It is the same for one process and for many: what differs is whether it is given the model itself
// or the model inside a DistributedDataParallel.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "data.h"
#include "options.h"

namespace gpt {

/// Up over the first twentieth of the steps, then down along a cosine to a tenth.
inline double learning_rate_at(int step, const Options& options) {
  const double warm = std::max(1, options.steps / 20);
  if (step < warm) return options.learning_rate * (step + 1) / warm;
  const double done = (step - warm) / std::max(1.0, options.steps - warm);
  return options.learning_rate * (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * done)) / 2);
}

/// Which part of each step is ours.
struct Share {
  int rank = 0;
  int size = 1;
  torch::Device device = torch::kCPU;
  /// Makes the mean over all processes of this process's loss.
  std::function<void(torch::Tensor&)> average = [](torch::Tensor&) {};
};

/// The loss of each of the first `steps` steps, over the whole batch. `on_step(step, loss)` is called after each.
template <class Model, class OnStep>
std::vector<double> train(Model& model, const Batches& batches, const Share& share, const Options& options, int steps,
                          OnStep on_step) {
  torch::optim::AdamW optimizer(
      model.parameters(), torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.99}).weight_decay(0.01));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate_at(step, options));
    const auto batch = batches.at(step, share.rank, share.size);
    const auto odds = model.forward(batch.inputs.to(share.device));
    auto loss = torch::nn::functional::cross_entropy(odds.flatten(0, 1), batch.targets.to(share.device).flatten());
    optimizer.zero_grad();
    loss.backward();  // with many processes, gradients are averaged while this runs
    optimizer.step();
    auto shown = loss.detach();
    share.average(shown);
    losses.push_back(shown.template item<double>());
    on_step(step, losses.back());
  }
  return losses;
}

}  // namespace gpt
