// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/lr_schedule.h>

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>
#include <utility>

namespace cohort::optim {

namespace {

void require_steps(const char* who, std::int64_t steps) {
  if (steps < 1) throw ValueError(fmt::format("{}: {} steps; it needs at least 1", who, steps));
}

}  // namespace

void StepLR::step() {
  on_host([this] { LRScheduler::step(); });
}

LrFactor cosine(std::int64_t steps, double floor) {
  require_steps("cosine", steps);
  return [=](std::int64_t step) {
    if (step >= steps) return floor;
    const auto part = static_cast<double>(step) / static_cast<double>(steps);
    return floor + (1 - floor) * (1 + std::cos(std::numbers::pi * part)) / 2;
  };
}

LrFactor warm_up(std::int64_t steps, LrFactor after) {
  require_steps("warm_up", steps);
  if (!after) throw ValueError("warm_up: no schedule to follow it");
  return [steps, after = std::move(after)](std::int64_t step) {
    if (step >= steps) return after(step - steps);
    return after(0) * static_cast<double>(step + 1) / static_cast<double>(steps);
  };
}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, LrFactor factor)
    : LRScheduler(optimizer), factor_(std::move(factor)), full_rates_(get_current_lrs()) {
  if (!factor_) throw ValueError("LambdaLR: no factor");
  for (std::size_t i = 0; i < full_rates_.size(); ++i) {
    optimizer.param_groups()[i].options().set_lr(full_rates_[i] * factor_(0));
  }
}

void LambdaLR::step() {
  on_host([this] { LRScheduler::step(); });
}

std::vector<double> LambdaLR::get_lrs() {
  auto rates = get_current_lrs();
  for (std::size_t i = full_rates_.size(); i < rates.size(); ++i) full_rates_.push_back(rates[i]);
  const auto factor = factor_(static_cast<std::int64_t>(step_count_) + 1);
  for (std::size_t i = 0; i < rates.size(); ++i) rates[i] = full_rates_[i] * factor;
  return rates;
}

StateDict LambdaLR::state_dict() const {
  StateDict state;
  state.set("step_count", step_count_);
  state.set("groups", full_rates_.size());
  for (std::size_t i = 0; i < full_rates_.size(); ++i) state.set(fmt::format("full_rate.{}", i), full_rates_[i]);
  return state;
}

void LambdaLR::load_state_dict(const StateDict& state) {
  const auto count = state.get<unsigned>("step_count");
  const auto groups = state.get<std::size_t>("groups");
  if (groups != full_rates_.size()) {
    throw ValueError(fmt::format("LambdaLR: it was saved for {} groups, and there are {}", groups, full_rates_.size()));
  }
  std::vector<double> rates;
  for (std::size_t i = 0; i < groups; ++i) rates.push_back(state.get<double>(fmt::format("full_rate.{}", i)));
  step_count_ = count;
  full_rates_ = std::move(rates);
}

}  // namespace cohort::optim
