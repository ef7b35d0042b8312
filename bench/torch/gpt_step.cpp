// SPDX-License-Identifier: BSD-3-Clause
//
// How much of a training step of a tensor-parallel GPT (examples/parallel_gpt.h) on 2 x 2 ranks is dispatch. An observer
// adds up the time of the operators on the local parts and of the collectives (operator_clock.h). The rest of the step
// counts as dispatch, although libtorch's autograd and the observer itself are in it: the true share is smaller.
#include <ATen/Parallel.h>
#include <cohort/new_group.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "../../examples/parallel_gpt.h"
#include "measure/child.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "operator_clock.h"
#include "program.h"
#include "servers.h"

namespace cohort::bench {

namespace {

using namespace std::chrono_literals;

struct Options {
  example::GptSizes sizes{.letters = 1024, .context = 256, .width = 512, .heads = 8, .layers = 6};
  std::int64_t batch = 8;
  int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 4, 1U, 4U));
  int rounds = 9;
};

constexpr int ranks = 4;

struct StepFigures {
  double seconds = 0;
  OperatorTimes operators;
};

class Rank {
 public:
  Rank(int rank, const Options& options)
      : options_(options),
        group_(new_group("shm", 60s, "cpu", {},
                         {.store = std::make_shared<TcpStore>(unix_client_options()), .rank = rank, .size = ranks})),
        mesh_(init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group_})),
        net_(made(options)),
        optimizer_((distribute_module(net_, mesh_, example::placements_of_parameter), net_.parameters()),
                   torch::optim::AdamWOptions(1e-4)) {
    const auto context = options.sizes.context;
    const auto text = torch::arange(options.batch * (context + 1)).mul(7).remainder(options.sizes.letters);
    const auto rows = text.view({options.batch, context + 1});
    const Placements by_batch{Shard(0), Replicate()};
    tokens_ = distribute_tensor(rows.narrow(1, 0, context).contiguous(), mesh_, by_batch);
    targets_ = distribute_tensor(rows.narrow(1, 1, context).contiguous(), mesh_, by_batch);
  }

  StepFigures step(bool is_observed) {
    group_->barrier();
    std::optional<OperatorClock> clock;
    if (is_observed) clock.emplace();
    const ImplicitReplication masks;
    const auto begin = Clock::now();
    optimizer_.zero_grad();
    net_.loss(tokens_, targets_).backward();
    optimizer_.step();
    return {.seconds = seconds_since(begin), .operators = clock ? clock->times() : OperatorTimes{}};
  }

 private:
  static example::Gpt made(const Options& options) {
    at::set_num_threads(options.threads);
    torch::manual_seed(1);
    return example::Gpt(options.sizes);
  }

  Options options_;
  ProcessGroupPtr group_;
  DeviceMesh mesh_;
  example::Gpt net_;
  torch::optim::AdamW optimizer_;
  at::Tensor tokens_;
  at::Tensor targets_;
};

void measure(const Options& options, Report& report) {
  const auto server = start_store_on_unix_socket();
  std::vector<Child> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.emplace_back([&options, rank](Channel& parent) {
      Rank self(rank, options);
      parent.send(true);
      for (int step = 0; step < 2 * (options.rounds + 1); ++step) parent.send(self.step(parent.receive<bool>()));
      parent.wait_for_end();
    });
  }
  for (auto& each : processes) each.channel().receive<bool>();
  /// The figures of the rank that spends the longest time outside of operators.
  const auto ask = [&](bool is_observed) {
    for (auto& each : processes) each.channel().send(is_observed);
    std::vector<StepFigures> all;
    for (auto& each : processes) all.push_back(each.channel().receive<StepFigures>());
    const auto rest = [](const StepFigures& figures) {
      return figures.seconds - figures.operators.kernels - figures.operators.collectives;
    };
    return *std::max_element(all.begin(), all.end(), [&](const auto& a, const auto& b) { return rest(a) < rest(b); });
  };
  ask(false);
  ask(true);
  std::vector<StepFigures> observed;
  const auto times = take_turns(2, options.rounds, [&](std::size_t which) {
    const auto figures = ask(which == 1);
    if (which == 1) observed.push_back(figures);
    return figures.seconds;
  });
  const auto of_rounds = [&](const auto& figure) {
    std::vector<double> all;
    for (const auto& each : observed) all.push_back(figure(each));
    return median(std::move(all));
  };
  const auto milliseconds = [&](const char* what, double seconds) {
    report.add({.what = what, .unit = "ms", .ours = seconds * 1e3});
  };
  const auto step = median(times[0]);
  milliseconds("a step", step);
  milliseconds("a step while it is observed", median(times[1]));
  milliseconds("operators on local parts", of_rounds([](const auto& each) { return each.operators.kernels; }));
  milliseconds("collectives", of_rounds([](const auto& each) { return each.operators.collectives; }));
  const auto rest =
      of_rounds([](const auto& each) { return each.seconds - each.operators.kernels - each.operators.collectives; });
  milliseconds("the rest", rest);
  report.add({.what = "the rest, of a step",
              .unit = "%",
              .ours = 100 * rest / step,
              .bar = Bar{.kind = Bar::Kind::at_most, .value = 5, .cores = 16},
              .note = fmt::format("{} calls with distributed tensors, {} operators on local parts",
                                  observed.front().operators.distributed, observed.front().operators.local)});
  report.print(fmt::format("a GPT step on 2 x 2 ranks of {} threads: width {}, {} layers, {} sequences of {}",
                           options.threads, options.sizes.width, options.sizes.layers, options.batch,
                           options.sizes.context));
}

}  // namespace

}  // namespace cohort::bench

int main(int argc, char** argv) {
  using namespace cohort::bench;
  Options options;
  Program program("Measures how much of a step of a tensor-parallel GPT is dispatch.", {"gpt_step"});
  const auto option = [&](const std::string& name, auto& value, const std::string& what) {
    program.app.add_option(name, value, what)->capture_default_str();
  };
  option("--rounds", options.rounds, "Steps of each kind");
  option("--threads", options.threads, "Threads of each rank");
  option("--width", options.sizes.width, "Width of the model; a multiple of 16");
  option("--layers", options.sizes.layers, "Number of layers");
  option("--context", options.sizes.context, "Length of a sequence");
  option("--batch", options.batch, "Sequences of all ranks together");
  return program.run(argc, argv, [&](Report& report) { measure(options, report); });
}
