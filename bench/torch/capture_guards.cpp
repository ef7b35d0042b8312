// SPDX-License-Identifier: BSD-3-Clause
//
// What a replay of a captured step costs before it begins: the guards of models with many small layers, which have a
// step's gradients, and of their optimizer, alone and under DistributedDataParallel.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "program.h"
#include "torch/capture/guards.h"
#include "torch/capture/recorder.h"

namespace cohort::benchmarks {

namespace {

double median_us(const recording::Guards& guards, const detail::CapturedCall& call, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    if (const auto why = guards.failure(call)) throw std::runtime_error(*why);
    times.push_back(seconds_since(begin) * 1e6);
  }
  return median(std::move(times));
}

torch::nn::Sequential made_net(int layers) {
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(16, 16));
  return net;
}

/// `Model`: called and watched.
template <class Model, class Optimizer>
void measure(const std::string& what, Model& model, Optimizer& optimizer, bool keeps_gradients, double most_us,
             int rounds, Report& report) {
  const auto x = at::ones({8, 16});
  const auto step = [&] {
    if (keeps_gradients) {
      for (const auto& each : model.parameters()) {
        if (each.grad().defined()) each.grad().zero_();
      }
    } else {
      model.zero_grad(/*set_to_none=*/true);
    }
    model.forward(x).sum().backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step();  // until DistributedDataParallel has its buckets
  detail::CapturedCall call;
  call.constants.push_back({.text = "void"});
  detail::collect_argument(x, call);
  recording::Guards guards(call, {model, optimizer});
  recording::Recorder recorder(call.tensors, guards.parameters(),
                               {.on_refusal = recording::Recorder::OnRefusal::throws, .source_lines = false});
  {
    const recording::RecordingScope scope(recorder);
    step();
  }
  guards.add_memory(recorder.finish({}));
  report.add({.what = fmt::format("{} parameters, {}", model.parameters().size(), what),
              .unit = "us",
              .ours = median_us(guards, call, rounds),
              .bar = at_most(most_us)});
}

void measure_all(int layers, double most_us, int rounds, Report& report) {
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  for (const bool keeps_gradients : {false, true}) {
    const std::string how = keeps_gradients ? ", zeroed gradients" : "";
    {
      auto net = made_net(layers);
      torch::optim::SGD optimizer(net->parameters(), sgd);
      measure("SGD" + how, *net, optimizer, keeps_gradients, most_us, rounds, report);
    }
    {
      auto net = made_net(layers);
      optim::AdamW optimizer(net->parameters());
      measure("AdamW" + how, *net, optimizer, keeps_gradients, most_us, rounds, report);
    }
    const auto group = new_group("fake", std::chrono::seconds(10), "cpu", {},
                                 {.store = std::make_shared<HashStore>(), .rank = 0, .size = 2});
    DistributedDataParallel ddp(made_net(layers), {.process_group = group});
    torch::optim::SGD optimizer(ddp.parameters(), sgd);
    measure("SGD, DDP" + how, ddp, optimizer, keeps_gradients, most_us, rounds, report);
  }
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  using namespace cohort::benchmarks;
  Program program("Measures the check of a captured step's guards.", 2001);
  program.part("guards", [&](Report& report) {
    at::set_num_threads(1);
    measure_all(50, 2, program.rounds(), report);
    measure_all(500, 20, program.rounds(), report);
    report.print("guards of a captured step");
  });
  return program.run(argc, argv);
}
