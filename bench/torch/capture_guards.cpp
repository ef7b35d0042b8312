// SPDX-License-Identifier: BSD-3-Clause
//
// What a replay of a captured step costs before it begins: the guards of models with many small layers, which have a step's
// gradients, and of their optimizer.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cohort/torch/capture.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "program.h"
#include "torch/capture/guards.h"

namespace cohort::bench {

namespace {

double median_us(const recording::Guards& guards, const detail::CapturedCall& call, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (const auto why = guards.failure(call)) throw std::runtime_error(*why);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

void measure(int layers, double most_us, int rounds, Report& report) {
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(16, 16));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto x = at::ones({8, 16});
  net->forward(x).sum().backward();
  optimizer.step();
  detail::CapturedCall call;
  call.constants.push_back({.text = "void"});
  detail::collect_argument(x, call);
  const recording::Guards guards(call, {net, optimizer});
  report.add({.what = fmt::format("{} parameters, SGD with momentum", 2 * layers),
              .unit = "us",
              .ours = median_us(guards, call, rounds),
              .bar = Bar{Bar::Kind::at_most, most_us}});
}

}  // namespace

}  // namespace cohort::bench

int main(int argc, char** argv) {
  using namespace cohort::bench;
  int rounds = 2001;
  Program program("Measures the check of a captured step's guards.", {"guards"});
  program.app.add_option("--rounds", rounds, "Rounds of each figure")->capture_default_str();
  return program.run(argc, argv, [&](Report& report) {
    at::set_num_threads(1);
    measure(50, 2, rounds, report);
    measure(500, 20, rounds, report);
    report.print("guards of a captured step");
  });
}
