// SPDX-License-Identifier: BSD-3-Clause
//
// How much of a training step of a tensor-parallel GPT (examples/parallel_gpt.h) on 2 x 2 ranks is dispatch. An
// observer adds up the time of the operators on the local parts and of the collectives (operator_clock.h). The rest of
// the step counts as dispatch, although libtorch's autograd and the observer itself are in it: the true share is
// smaller.
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "../../examples/parallel_gpt.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"
#include "operator_clock.h"
#include "program.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

struct Options {
  example::GptSizes sizes{.letters = 1024, .context = 256, .width = 512, .heads = 8, .layers = 6};
  std::int64_t batch = 8;
  int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 4, 1U, 4U));
};

struct StepFigures {
  double seconds = 0;
  OperatorTimes operators;
};

class Rank {
 public:
  Rank(int rank, int size, const Options& options)
      : group_(shm_group(rank, size)),
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

  StepFigures answer(bool is_observed) {
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

  ProcessGroupPtr group_;
  DeviceMesh mesh_;
  example::Gpt net_;
  torch::optim::AdamW optimizer_;
  at::Tensor tokens_;
  at::Tensor targets_;
};

double rest_of(const StepFigures& figures) {
  return figures.seconds - figures.operators.kernels - figures.operators.collectives;
}

void measure(const Options& options, int rounds, Report& report) {
  ShmRanks<Rank, bool, StepFigures> ranks(4, options);
  /// The figures of the rank that spends the longest time outside of operators.
  const auto ask = [&](bool is_observed) {
    const auto all = ranks.ask(is_observed);
    return *std::max_element(all.begin(), all.end(),
                             [](const auto& a, const auto& b) { return rest_of(a) < rest_of(b); });
  };
  ask(false);
  ask(true);
  std::vector<StepFigures> observed;
  const auto times = take_turns(2, rounds, [&](std::size_t which) {
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
  const auto rest = of_rounds(rest_of);
  milliseconds("the rest", rest);
  report.add({.what = "the rest, of a step",
              .unit = "%",
              .ours = 100 * rest / step,
              .bar = at_most(5, 16),
              .note = fmt::format("{} calls with distributed tensors, {} operators on local parts",
                                  observed.front().operators.distributed, observed.front().operators.local)});
  report.print(fmt::format("a GPT step on 2 x 2 ranks of {} threads: width {}, {} layers, {} sequences of {}",
                           options.threads, options.sizes.width, options.sizes.layers, options.batch,
                           options.sizes.context));
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  using namespace cohort::benchmarks;
  Options options;
  Program program("Measures how much of a step of a tensor-parallel GPT is dispatch.", 9);
  program.option("--threads", options.threads, "Threads of each rank");
  program.option("--width", options.sizes.width, "Width of the model; a multiple of 16");
  program.option("--layers", options.sizes.layers, "Number of layers");
  program.option("--context", options.sizes.context, "Length of a sequence");
  program.option("--batch", options.batch, "Sequences of all ranks together");
  program.part("gpt_step", [&](Report& report) { measure(options, program.rounds(), report); });
  return program.run(argc, argv);
}
