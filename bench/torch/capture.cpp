// SPDX-License-Identifier: BSD-3-Clause
//
// Captured steps beside the same steps in eager mode: many tiny layers, where what surrounds the kernels is what
// counts, alone and under DistributedDataParallel; what recording costs; how much memory a replay needs.
#include <ATen/Parallel.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "measure/interleaved.h"
#include "peak_memory.h"
#include "program.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

struct Options {
  int layers = 200;
  std::int64_t width = 16;
  std::int64_t batch = 8;
  int steps = 10;
};

enum class Way : int { eager, replay };

torch::nn::Sequential made_net(const Options& options) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < options.layers; ++i) net->push_back(torch::nn::Linear(options.width, options.width));
  return net;
}

/// A training step of a model that is called, and may be wrapped, as `Model`.
template <class Model>
class Steps {
 public:
  Steps(const Options& options, Model& model)
      : model_(model),
        optimizer_(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
        x_(torch::randn({options.batch, options.width})),
        y_(torch::randn({options.batch, options.width})) {}

  at::Tensor eager(const at::Tensor& x, const at::Tensor& y) {
    optimizer_.zero_grad();
    auto loss = torch::mse_loss(model_.forward(x), y);
    loss.backward();
    optimizer_.step();
    return loss;
  }

  auto captured() {
    return capture([this](const at::Tensor& x, const at::Tensor& y) { return eager(x, y); },
                   {.watch = {model_, optimizer_}});
  }

  /// Seconds of one step.
  double time(Way way, int steps) {
    if (!replayed_) {
      replayed_.emplace(captured());
      // Until it is replayed.
      for (int i = 0; i < 6; ++i) (*replayed_)(x_, y_);
    }
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) way == Way::eager ? eager(x_, y_) : (*replayed_)(x_, y_);
    return seconds_since(begin) / steps;
  }

  /// Seconds of the first call, which records, or of the second, which also compares, runs the passes and plans the
  /// replay.
  double time_of_recording(bool is_second) {
    auto fresh = captured();
    if (is_second) fresh(x_, y_);
    const auto begin = Clock::now();
    fresh(x_, y_);
    return seconds_since(begin);
  }

  std::int64_t peak_memory(Way way) {
    const PeakMemory memory;
    time(way, 1);
    return memory.peak();
  }

 private:
  Model& model_;
  torch::optim::SGD optimizer_;
  at::Tensor x_;
  at::Tensor y_;
  std::optional<decltype(std::declval<Steps>().captured())> replayed_;
};

void add_speedup(const std::string& what, const Turns& times, double least, Report& report) {
  report.add(compared(what, "us", times[1], times[0], "eager", at_least(least)));
}

void measure_alone(const Options& options, int rounds, Report& report) {
  auto net = made_net(options);
  Steps<torch::nn::SequentialImpl> steps(options, *net);
  steps.time(Way::replay, options.steps);
  const auto times = take_turns(4, rounds, [&](std::size_t which) {
    const auto seconds =
        which >= 2 ? steps.time_of_recording(which == 3) : steps.time(static_cast<Way>(which), options.steps);
    return seconds * 1e6;
  });
  add_speedup("a step", times, 1.8, report);
  report.add(compared("the first recording", "us", times[2], times[0], "eager", at_most(3)));
  report.add(compared("the second, which ends recording", "us", times[3], times[0], "eager", at_most(3)));
  const auto in_replay = static_cast<double>(steps.peak_memory(Way::replay)) / 1024;
  const auto in_eager = static_cast<double>(steps.peak_memory(Way::eager)) / 1024;
  report.add(compared("memory that a step takes at most", "KiB", {in_replay}, {in_eager}, "eager", at_most(1)));
  report.print(fmt::format("{} x Linear({}), batch of {}, SGD with momentum, on one thread", options.layers,
                           options.width, options.batch));
}

class DdpRank {
 public:
  DdpRank(int rank, int size, const Options& options)
      : steps_count_(options.steps),
        group_(group_on_one_thread(rank, size)),
        ddp_(made_net(options), {.process_group = group_}),
        steps_(options, ddp_) {
    steps_.time(Way::replay, steps_count_);
  }
  double answer(Way way) {
    group_->barrier();
    return steps_.time(way, steps_count_);
  }

 private:
  static ProcessGroupPtr group_on_one_thread(int rank, int size) {
    at::set_num_threads(1);
    return shm_group(rank, size);
  }

  int steps_count_;
  ProcessGroupPtr group_;
  DistributedDataParallel<torch::nn::SequentialImpl> ddp_;
  Steps<decltype(ddp_)> steps_;
};

void measure_ddp(const Options& options, int rounds, int size, Report& report) {
  ShmRanks<DdpRank, Way, double> ranks(size, options);
  const auto times = take_turns(2, rounds, [&](std::size_t which) {
    const auto seconds = ranks.ask(static_cast<Way>(which));
    return *std::max_element(seconds.begin(), seconds.end()) * 1e6;
  });
  add_speedup("a step", times, 1.5, report);
  report.print(fmt::format("the same under DistributedDataParallel, {} processes", size));
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  using namespace cohort::benchmarks;
  Options options;
  int ranks = 2;
  Program program("Measures captured training steps beside eager ones.", 31);
  program.option("--steps", options.steps, "Steps of a round");
  program.option("--layers", options.layers, "Number of layers");
  program.option("--width", options.width, "Width of a layer");
  program.option("--batch", options.batch, "Rows of a batch");
  program.option("--ranks", ranks, "Processes under DistributedDataParallel");
  program.part("ddp", [&](Report& report) { measure_ddp(options, program.rounds(), ranks, report); });
  program.part("alone", [&](Report& report) {
    at::set_num_threads(1);
    measure_alone(options, program.rounds(), report);
  });
  return program.run(argc, argv);
}
