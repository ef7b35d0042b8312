// SPDX-License-Identifier: BSD-3-Clause
#include "plan/fit.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/comparison.h"
#include "bench/flags.h"
#include "bench/ranks.h"
#include "core/cpus.h"
#include "measure/sizes.h"
#include "measure/statistics.h"

namespace cohort::plan {

namespace {

std::vector<Sample> measure(int ranks, const std::string& backend) {
  bench::BenchFlags flags;
  flags.min_bytes = "1K";
  flags.max_bytes = "64M";
  flags.ranks = ranks;
  flags.backends = {backend};
  flags.placement = "in";
  flags.rounds = 5;
  flags.limit_ms = 100;
  const auto plan = bench::make_bench_plan(flags);
  const tool::Guard guard;
  const auto contestants = bench::start_groups(flags, plan, ranks, guard);
  std::vector<Sample> samples;
  for (const auto bytes : plan.sizes) {
    auto command = plan.command;
    command.operation = plan.operations.front();
    command.bytes = bytes;
    const auto measured = bench::compare(contestants, command, ranks,
                                         {.rounds = flags.rounds, .check = false, .placements = plan.placements});
    const auto& outcome = measured.rows.front().in_place;
    if (!outcome.has_figures()) {
      throw Error(
          fmt::format("--fit: the backend {} could not be measured: {}{}", backend, outcome.failure, outcome.refusal));
    }
    // The best round: whatever else the machine does can only make others slower.
    const auto medians = outcome.rounds.medians();
    samples.push_back({.operation = std::string(to_string(command.operation)),
                       .bytes = measured.bytes,
                       .seconds = *std::min_element(medians.begin(), medians.end()) * 1e-6});
  }
  return samples;
}

double predicted(const Fit& fit, const Sample& sample) {
  return cost_on_link(sample.operation, static_cast<double>(sample.bytes), fit.ranks, fit.cluster.intra,
                      fit.cluster.algorithm);
}

}  // namespace

Fit fit_here(int ranks, const std::string& backend, Algorithm algorithm) {
  if (ranks < 2) throw ValueError(fmt::format("--fit {}: a link has two ends", ranks));
  Fit fit{.ranks = ranks, .samples = measure(ranks, backend)};
  fit.cluster.algorithm = algorithm;
  fit.cluster.intra = fit_link(fit.samples, ranks, algorithm);
  // Asynchronous collectives have a thread of their own, and a rank with one core has none to spare for it.
  fit.cluster.overlap = usable_cpus().count() >= 2 * ranks ? 1 : 0;
  std::vector<double> errors;
  for (const auto& each : fit.samples) errors.push_back(std::abs(predicted(fit, each) / each.seconds - 1));
  fit.error = measure::median(std::move(errors));
  return fit;
}

std::string to_text(const Fit& fit) {
  auto text = fmt::format("fitted to all_reduces of {} ranks on this machine: {}; overlap {:g}\n", fit.ranks,
                          to_string(fit.cluster.intra), fit.cluster.overlap);
  text += fmt::format("  {:>10}  {:>12}  {:>12}  {:>7}\n", "size", "measured us", "fitted us", "error");
  for (const auto& each : fit.samples) {
    const double model = predicted(fit, each);
    text += fmt::format("  {:>10}  {:>12.1f}  {:>12.1f}  {:>+6.0f}%\n", measure::format_size(each.bytes),
                        each.seconds * 1e6, model * 1e6, 100 * (model / each.seconds - 1));
  }
  return text;
}

}  // namespace cohort::plan
