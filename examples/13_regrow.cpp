// SPDX-License-Identifier: BSD-3-Clause
//
// A process is killed in the middle of training. The others go on at once without it; the launcher starts another
// process in its place, which joins them and gets their state. Nothing is read from disk. Start it with
//
//   cohort run -n 4 --keep-going --max-restarts 1 ./regrow LOSSES.csv
//
// Rank 2 kills itself at step 60, and at step 120 the group takes the new process in. examples/draw_regrow.py draws the
// losses.
#include <cohort/cohort.h>
#include <cohort/env.h>
#include <cohort/launch.h>
#include <cohort/torch/ddp.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr int steps = 180;
constexpr int step_of_death = 60;
constexpr int step_of_growth = 120;
constexpr int victim = 2;

struct Training {
  explicit Training(bool joins_later) : is_newcomer(joins_later) {}

  bool is_newcomer;
  torch::nn::Sequential net{torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1)};
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(1e-3)};
  int step = 0;
  std::vector<std::string> log{};  // rank 0's: step, loss, ranks

  // Rank 0 was there before, so what it has is what counts. Survivors take it as well: in the step that failed, one of
  // them may have updated its parameters and another one not. The constructor of DistributedDataParallel sends the
  // parameters in the same way.
  void take_over_state(cohort::ProcessGroup& pg) {
    std::ostringstream mine;
    torch::save(optimizer, mine);
    std::istringstream theirs(pg.broadcast_bytes(mine.str()));
    torch::load(optimizer, theirs);
    step = std::stoi(pg.broadcast_bytes(std::to_string(step)));
  }

  void one_step(cohort::ProcessGroup& pg, cohort::DistributedDataParallel<torch::nn::SequentialImpl>& ddp) {
    const auto x = torch::randn({64, 8});
    auto loss = torch::mse_loss(ddp.forward(x).squeeze(1), torch::tanh(x.sum(1)));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    ++step;
    std::vector<double> mean{loss.item<double>()};
    pg.all_reduce(mean, {.op = cohort::ReduceOp::avg()});
    if (pg.rank() == 0) {
      log.push_back(std::to_string(step) + "," + std::to_string(mean[0]) + "," + std::to_string(pg.size()));
    }
  }

  // Trains until the end or until the group changes; returns the group to go on with.
  cohort::ProcessGroupPtr train(const cohort::ProcessGroupPtr& pg) {
    try {
      take_over_state(*pg);
      cohort::DistributedDataParallel ddp(net, {.process_group = pg});
      while (step < steps) {
        one_step(*pg, ddp);
        if (step == step_of_death && pg->rank() == victim && !is_newcomer) ::kill(::getpid(), SIGKILL);
        if (step == step_of_growth) {
          // A program of your own would call pg->grow() every so often, which does not wait for anybody.
          const auto larger = pg->grow({.at_least = 1, .timeout = 30s});
          if (larger != pg) return larger;
        }
      }
      return pg;
    } catch (const cohort::PeerLostError& e) {
      const auto rest = pg->shrink();
      if (rest->rank() == 0) std::cout << "step " << step << ": " << e.what() << "; on with " << rest->size() << '\n';
      return rest;
    }
  }
};

bool is_equal_everywhere(cohort::ProcessGroup& pg, const torch::nn::Sequential& net) {
  auto least = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  auto most = least.clone();
  pg.all_reduce(least, {.op = cohort::ReduceOp::min()});
  pg.all_reduce(most, {.op = cohort::ReduceOp::max()});
  return torch::equal(least, most);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);
    const auto launch = cohort::find_launch(cohort::Env::read());
    if (!launch || launch->size <= victim) {
      std::cerr << "usage: cohort run -n 4 --keep-going --max-restarts 1 regrow [LOSSES.csv]\n";
      return 2;
    }
    Training training(launch->replacement > 0);
    auto pg = training.is_newcomer ? cohort::join_group("auto", 60s, "cpu") : cohort::new_group("auto", 60s, "cpu");
    if (training.is_newcomer) std::cout << "a new process joins as rank " << pg->rank() << " of " << pg->size() << '\n';
    torch::manual_seed(11 + static_cast<std::uint64_t>(launch->rank + launch->size * launch->replacement));
    do {
      pg = training.train(pg);
    } while (training.step < steps);

    const bool is_whole = pg->size() == launch->size && is_equal_everywhere(*pg, training.net);
    if (pg->rank() == 0) {
      std::cout << "after step " << training.step << " there are " << pg->size() << " processes\n";
      std::ofstream file(argc > 1 ? argv[1] : "/dev/null");
      file << "step,loss,ranks\n";
      for (const auto& line : training.log) file << line << '\n';
    }
    return is_whole ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "regrow: " << e.what() << '\n';
    return 1;
  }
}
