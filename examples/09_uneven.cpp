// SPDX-License-Identifier: BSD-3-Clause
//
// Processes that have different amounts of data. Without care the first one to finish would leave the others waiting
// for its gradients; inside join() it goes on taking part, with nothing to add, until the last one is done. Start it
// with
//
//   cohort run -n 3 ./uneven
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/join.h>
#include <torch/torch.h>

#include <iostream>

using namespace std::chrono_literals;

int main() {
  try {
    at::set_num_threads(1);
    const auto pg = cohort::new_group("auto", 30s, "cpu");
    const torch::nn::Linear net(4, 1);
    cohort::DistributedDataParallel ddp(net, {.process_group = pg});
    torch::optim::SGD optimizer(ddp.parameters(), 0.05);

    // Rank 0 has 40 batches, rank 1 has 60, rank 2 has 80 ...
    torch::manual_seed(1 + static_cast<std::uint64_t>(pg->rank()));
    const int batches = 40 + 20 * pg->rank();
    const auto truth = torch::arange(1, 5, torch::kFloat);
    int steps = 0;
    cohort::join({&ddp}, [&] {
      for (; steps < batches; ++steps) {
        const auto x = torch::randn({16, 4});
        auto loss = torch::mse_loss(ddp.forward(x).squeeze(1), torch::mv(x, truth) + 5);
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
      }
    });

    // All have the weights of the one that trained longest.
    const auto error = (net->weight.detach().squeeze(0) - truth).abs().max().item<float>();
    std::cout << "rank " << pg->rank() << ": " << steps << " batches, largest error of the weights " << error << '\n';
    return error < 0.1F ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "uneven: " << e.what() << '\n';
    return 1;
  }
}
