// SPDX-License-Identifier: BSD-3-Clause
//
// A user's program against the installed package: one rank trains a line.
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>

int main() {
  using namespace std::chrono_literals;
  const auto group = cohort::new_group("thread", 30s, "cpu", {},
                                       {.store = std::make_shared<cohort::HashStore>(), .rank = 0, .size = 1});
  cohort::DistributedDataParallel ddp(torch::nn::Linear(1, 1), {.process_group = group});
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  double loss = 0;
  for (int i = 0; i < 500; ++i) {
    optimizer.zero_grad();
    const auto x = torch::rand({16, 1});
    const auto error = torch::mse_loss(ddp.forward(x), 3 * x + 1);
    error.backward();
    optimizer.step();
    loss = error.item<double>();
  }
  std::cout << "loss " << loss << "\n";
  return loss < 0.01 ? 0 : 1;
}
