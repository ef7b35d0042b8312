// SPDX-License-Identifier: BSD-3-Clause
//
// Data-parallel training in forty lines: every process has the same model and points of its own, and backward()
// averages the gradients over all processes. Start it with   cohort run -n 2 ./mlp
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>
#include <torch/torch.h>

#include <iostream>

using namespace std::chrono_literals;

int main() {
  try {
    at::set_num_threads(1);  // one core for each process
    const auto pg = cohort::new_group("auto", 30s, "cpu");

    const torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                                    torch::nn::Tanh(), torch::nn::Linear(64, 1));
    cohort::DistributedDataParallel ddp(net, {.process_group = pg});  // all start from rank 0's weights
    torch::optim::Adam optimizer(ddp.parameters(), 1e-2);

    torch::manual_seed(100 + static_cast<std::uint64_t>(pg->rank()));  // other points on each rank
    float last = 0;
    for (int step = 1; step <= 200; ++step) {
      const auto x = torch::rand({64, 2}) * 4 - 2;
      const auto y = torch::sin(x.select(1, 0)) * x.select(1, 1);
      auto loss = torch::mse_loss(ddp.forward(x).squeeze(1), y);
      optimizer.zero_grad();
      loss.backward();  // the gradients are averages when this returns
      optimizer.step();
      last = loss.item<float>();  // this rank's own
      if (step % 50 == 0 && pg->rank() == 0) std::cout << "step " << step << ": loss " << last << '\n';
    }
    return last < 0.1F ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "mlp: " << e.what() << '\n';
    return 1;
  }
}
