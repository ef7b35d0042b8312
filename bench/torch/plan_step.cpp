// SPDX-License-Identifier: BSD-3-Clause
//
// One rank of plan_validation.py: a captured step of DistributedDataParallel with SGD and momentum, on one thread.
//
//   plan_step record FILE MODEL RANKS BUCKET_MB    on a fake group of so many ranks; saves the step with measured replays
//   plan_step run MODEL BUCKET_MB                  on the ranks of the launcher; rank 0 prints the median of a step, in ms
//
// Under a launcher, `record` has every rank record on a fake group of its own at the same time, so that computing is
// measured on a machine that is as busy as it will be, and rank 0 saves.
#include <ATen/Parallel.h>
#include <cohort/cohort.h>
#include <cohort/env.h>
#include <cohort/launch.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/recorded_step.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "models.h"

using namespace std::chrono_literals;

namespace cohort::benchmarks {

namespace {

constexpr int warm_up = 5;
constexpr int measured = 40;

/// What is recorded and what is run is the same step.
class Training {
 public:
  Training(const std::string& model, const ProcessGroupPtr& group, double bucket_mb)
      : net_(make_model(model)),
        ddp_(net_, {.process_group = group, .bucket_cap_mb = bucket_mb}),
        optimizer_(ddp_.parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9)),
        input_(net_->input()) {}

  auto step() {
    return capture(
        [this](const torch::Tensor& x) {
          optimizer_.zero_grad();
          auto loss = ddp_.forward(x);
          loss.backward();
          optimizer_.step();
          return loss;
        },
        {.watch = {net_, ddp_, optimizer_}});
  }
  const torch::Tensor& input() const { return input_; }

 private:
  std::shared_ptr<BenchModel> net_;
  DistributedDataParallel<BenchModel> ddp_;
  optim::SGD optimizer_;
  torch::Tensor input_;
};

void record(const std::string& file, const std::string& model, int ranks, double bucket_mb) {
  const auto launch = find_launch(Env::read());
  const auto group =
      new_group("fake", 60s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = ranks});
  Training training(model, group, bucket_mb);
  auto step = training.step();
  for (int i = 0; i < warm_up; ++i) step(training.input());
  step.measure(measured);
  // The others go on a little, so that the last replay of each is as disturbed as the first.
  for (int i = 0; i < measured + measured / 2; ++i) step(training.input());
  if (!launch || launch->rank == 0) save_step(file, step.recorded());
}

void run(const std::string& model, double bucket_mb) {
  const auto group = new_group("shm", 60s, "cpu");
  Training training(model, group, bucket_mb);
  auto step = training.step();
  for (int i = 0; i < warm_up; ++i) step(training.input());
  std::vector<double> times;
  for (int i = 0; i < measured; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step(training.input());
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + measured / 2, times.end());
  if (group->rank() == 0) std::cout << times[measured / 2] << "\n";
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  at::set_num_threads(1);
  try {
    if (arguments.size() == 5 && arguments[0] == "record") {
      cohort::benchmarks::record(arguments[1], arguments[2], std::stoi(arguments[3]), std::stod(arguments[4]));
    } else if (arguments.size() == 3 && arguments[0] == "run") {
      cohort::benchmarks::run(arguments[1], std::stod(arguments[2]));
    } else {
      std::cerr << "usage: plan_step record FILE MODEL RANKS BUCKET_MB | plan_step run MODEL BUCKET_MB\n";
      return 2;
    }
  } catch (const std::exception& e) {
    std::cerr << "plan_step: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
