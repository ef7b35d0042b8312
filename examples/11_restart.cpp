// SPDX-License-Identifier: BSD-3-Clause
//
// A process is killed in the middle of training, the launcher starts all of them again, and they go on where the last
// checkpoint was written. Start it with
//
//   cohort run -n 2 --max-restarts 1 ./restart FOLDER
//
// At the first attempt rank 1 kills itself at step 70. The end is, to the bit, that of a run in which nobody was
// killed. The checkpoints in FOLDER are safetensors files, which Python opens as well (docs/checkpoints.md).
#include <cohort/cohort.h>
#include <cohort/env.h>
#include <cohort/launch.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/ddp.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <iostream>
#include <string>

using namespace std::chrono_literals;

namespace {

constexpr int steps = 100;

/// The last loss. Without a folder nothing is saved, and nobody dies.
double train(const cohort::ProcessGroupPtr& pg, const std::string& folder, bool dies) {
  torch::manual_seed(3 + static_cast<std::uint64_t>(pg->rank()));
  const torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Dropout(0.1), torch::nn::Tanh(),
                                  torch::nn::Linear(32, 1));
  cohort::DistributedDataParallel ddp(net, {.process_group = pg});
  torch::optim::Adam optimizer(ddp.parameters(), 1e-2);
  int step = 0;
  double loss_now = 0;

  cohort::Checkpoint checkpoint;  // with each rank's random state, which dropout and the data below depend on
  checkpoint.add("model", net);
  checkpoint.add("optimizer", optimizer);
  checkpoint.add("step", step);
  checkpoint.add("loss", loss_now);
  if (const auto last = folder.empty() ? std::nullopt : cohort::Checkpoint::latest(folder)) {
    checkpoint.load(*last, pg);
    if (pg->rank() == 0) std::cout << "on from step " << step << ", " << *last << std::endl;
  }

  while (step < steps) {
    const auto x = torch::randn({32, 8});
    auto loss = torch::mse_loss(ddp.forward(x).squeeze(1), x.sum(1));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_now = loss.item<double>();
    ++step;
    if (!folder.empty() && step % 20 == 0) {
      checkpoint.save(folder + "/step-" + std::to_string(step) + ".safetensors", pg, {.keep = 2});
    }
    if (dies && step == 70) {
      std::cout << "rank " << pg->rank() << " dies at step " << step << std::endl;
      ::kill(::getpid(), SIGKILL);
    }
  }
  return loss_now;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: cohort run -n 2 --max-restarts 1 restart FOLDER\n";
    return 2;
  }
  try {
    at::set_num_threads(1);
    const auto launch = cohort::find_launch(cohort::Env::read());
    const bool first_attempt = launch && launch->restart_count == 0;
    const auto pg = cohort::new_group("auto", 30s, "cpu");
    const auto interrupted = train(pg, argv[1], first_attempt && pg->rank() == pg->size() - 1);
    const auto uninterrupted = train(pg, "", false);
    if (pg->rank() == 0) {
      std::cout << "loss " << interrupted << " with an interruption, " << uninterrupted << " without\n";
    }
    // In a folder where the run has ended before, the checkpoint's loss is all there is, and that is rank 0's.
    return pg->rank() == 0 && interrupted != uninterrupted ? 1 : 0;
  } catch (const std::exception& e) {
    std::cerr << "restart: " << e.what() << '\n';
    return 1;
  }
}
