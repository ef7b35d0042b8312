// SPDX-License-Identifier: BSD-3-Clause
//
// A training step of many small layers, first in eager mode and then captured: the same losses in less time.
//
//   cohort run -n 2 ./capture [layers]
//
// The first few calls record the step, until two recordings in a row are alike; later ones replay it: kernels and
// collectives are called directly, without the module, autograd and the optimizer's loops.
#include <cohort/cohort.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr int steps = 60;

struct Run {
  std::vector<float> losses;
  double milliseconds = 0;  // of a step, without the first ten
};

template <class Step>
Run train(Step& step, const std::vector<std::pair<torch::Tensor, torch::Tensor>>& batches) {
  Run run;
  auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (i == 10) begin = std::chrono::steady_clock::now();
    run.losses.push_back(step(batches[i].first, batches[i].second).template item<float>());
  }
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  run.milliseconds = spent.count() / static_cast<double>(batches.size() - 10);
  return run;
}

torch::nn::Sequential layers(int count) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) net->push_back(torch::nn::Linear(16, 16));
  return net;
}

/// The same training, captured or not.
Run train_layers(int count, bool is_captured, const cohort::ProcessGroupPtr& pg) {
  cohort::DistributedDataParallel ddp(layers(count), {.process_group = pg});
  cohort::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3));
  auto eager = [&](const torch::Tensor& x, const torch::Tensor& y) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    optimizer.step();
    return loss.detach();
  };
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  torch::manual_seed(static_cast<std::uint64_t>(pg->rank()) + 2);
  for (int i = 0; i < steps; ++i) batches.emplace_back(torch::randn({8, 16}), torch::randn({8, 16}));
  if (!is_captured) return train(eager, batches);

  auto captured = cohort::capture(eager, {.watch = {ddp, optimizer}});
  auto run = train(captured, batches);
  if (pg->rank() == 0) {
    std::cout << captured.explain();
    if (count <= 2) std::cout << captured.graph();
  }
  return run;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 50;
  torch::set_num_threads(1);
  auto pg = cohort::new_group("auto", 30s, "cpu");
  const auto eager = train_layers(count, false, pg);
  const auto captured = train_layers(count, true, pg);
  if (pg->rank() == 0) {
    std::cout << count << " layers on " << pg->size() << " ranks: " << std::fixed << std::setprecision(2)
              << eager.milliseconds << " ms a step in eager mode, " << captured.milliseconds << " ms captured\n";
  }
  if (eager.losses != captured.losses) {
    std::cerr << "the losses differ\n";
    return 1;
  }
}
