// SPDX-License-Identifier: BSD-3-Clause
//
// Captured steps beside the same steps in eager mode: many tiny layers, where what surrounds the kernels is what counts,
// alone and under DistributedDataParallel; what recording costs; how much memory a replay needs.
#include <ATen/Parallel.h>
#include <cohort/new_group.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "measure/child.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "peak_memory.h"
#include "program.h"
#include "servers.h"

namespace cohort::bench {

namespace {

using namespace std::chrono_literals;

struct Options {
  int layers = 200;
  std::int64_t width = 16;
  std::int64_t batch = 8;
  int steps = 10;
  int rounds = 31;
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

  /// Seconds of the first call, which records, or of the second, which also compares, runs the passes and plans the replay.
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

void add_times(const std::string& what, const Turns& times, double bar, Report& report) {
  const auto& eager = times[0];
  const auto& replay = times[1];
  report.add({.what = what,
              .unit = "us",
              .ours = median(replay) * 1e6,
              .peer = median(eager) * 1e6,
              .peer_name = "eager",
              .ratio = median_ratio(eager, replay),
              .bar = Bar{Bar::Kind::at_least, bar}});
}

void measure_alone(const Options& options, Report& report) {
  auto net = made_net(options);
  Steps<torch::nn::SequentialImpl> steps(options, *net);
  steps.time(Way::replay, options.steps);
  const auto times = take_turns(4, options.rounds, [&](std::size_t which) {
    return which >= 2 ? steps.time_of_recording(which == 3) : steps.time(static_cast<Way>(which), options.steps);
  });
  add_times("a step", times, 1.8, report);
  const auto add_recording = [&](const std::string& what, std::size_t which) {
    report.add({.what = what,
                .unit = "us",
                .ours = median(times[which]) * 1e6,
                .peer = median(times[0]) * 1e6,
                .peer_name = "eager",
                .ratio = median_ratio(times[which], times[0]),
                .bar = Bar{Bar::Kind::at_most, 3}});
  };
  add_recording("the first recording", 2);
  add_recording("the second, which ends recording", 3);
  const auto in_replay = static_cast<double>(steps.peak_memory(Way::replay));
  const auto in_eager = static_cast<double>(steps.peak_memory(Way::eager));
  report.add({.what = "memory that a step takes at most",
              .unit = "KiB",
              .ours = in_replay / 1024,
              .peer = in_eager / 1024,
              .peer_name = "eager",
              .ratio = in_replay / in_eager,
              .bar = Bar{Bar::Kind::at_most, 1}});
  report.print(fmt::format("{} x Linear({}), batch of {}, SGD with momentum, on one thread", options.layers,
                           options.width, options.batch));
}

void measure_ddp(const Options& options, int ranks, Report& report) {
  const auto server = start_store_on_unix_socket();
  std::vector<Child> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.emplace_back([&options, ranks, rank](Channel& parent) {
      at::set_num_threads(1);
      const auto group =
          new_group("shm", 60s, "cpu", {},
                    {.store = std::make_shared<TcpStore>(unix_client_options()), .rank = rank, .size = ranks});
      DistributedDataParallel ddp(made_net(options), {.process_group = group});
      Steps<decltype(ddp)> steps(options, ddp);
      steps.time(Way::replay, options.steps);
      parent.send(true);
      for (int i = 0; i < 2 * options.rounds; ++i) {
        const auto way = parent.receive<Way>();
        group->barrier();
        parent.send(steps.time(way, options.steps));
      }
      parent.wait_for_end();
    });
  }
  for (auto& each : processes) each.channel().receive<bool>();
  const auto times = take_turns(2, options.rounds, [&](std::size_t which) {
    for (auto& each : processes) each.channel().send(static_cast<Way>(which));
    double slowest = 0;
    for (auto& each : processes) slowest = std::max(slowest, each.channel().receive<double>());
    return slowest;
  });
  add_times("a step", times, 1.5, report);
  report.print(fmt::format("the same under DistributedDataParallel, {} processes", ranks));
}

}  // namespace

}  // namespace cohort::bench

int main(int argc, char** argv) {
  using namespace cohort::bench;
  Options options;
  int ranks = 2;
  Program program("Measures captured training steps beside eager ones.", {"alone", "ddp"});
  const auto option = [&](const std::string& name, auto& value, const std::string& what) {
    program.app.add_option(name, value, what)->capture_default_str();
  };
  option("--rounds", options.rounds, "Rounds of each figure");
  option("--steps", options.steps, "Steps of a round");
  option("--layers", options.layers, "Number of layers");
  option("--width", options.width, "Width of a layer");
  option("--batch", options.batch, "Rows of a batch");
  option("--ranks", ranks, "Processes under DistributedDataParallel");
  return program.run(argc, argv, [&](Report& report) {
    at::set_num_threads(1);
    if (program.wants("ddp")) measure_ddp(options, ranks, report);
    if (program.wants("alone")) measure_alone(options, report);
  });
}
