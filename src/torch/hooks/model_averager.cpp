// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/post_local_sgd.h>
#include <torch/serialize/archive.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "torch/flatten.h"
#include "torch/hooks/hook_support.h"
#include "torch/optim/optimizer_state.h"

namespace cohort {

namespace {

/// Averages with one all_reduce for each device and dtype.
void average_over(ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> by_kind;
  for (const auto& parameter : parameters) {
    // Ordered by the device's name, which is the same on all ranks if a model is on several devices.
    if (parameter.grad().defined()) by_kind[{parameter.device().str(), parameter.scalar_type()}].push_back(parameter);
  }
  for (const auto& [kind, members] : by_kind) {
    const auto flat = flattened(members).div_(group.size());
    group.all_reduce(buffer_of(flat), {.stream = current_stream(flat)});
    copy_from_flat(flat, members);
  }
}

constexpr const char* step_key = "cohort_averager_step";

}  // namespace

ModelAverager::ModelAverager(std::int64_t warmup_steps) : warmup_steps_(warmup_steps) {
  if (warmup_steps < 0) {
    throw ValueError(fmt::format("a model averager's warmup_steps is {}; it must not be negative", warmup_steps));
  }
}

void ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  hooks::refuse_to_capture_counting("a model averager");
  if (step_ >= warmup_steps_) {
    if (const auto group = group_at(step_)) average_over(*group, parameters);
  }
  ++step_;
}

void ModelAverager::average_parameters(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups) all.insert(all.end(), group.params().begin(), group.params().end());
  average_parameters(all);
}

PeriodicModelAverager::PeriodicModelAverager(ModelAveragerOptions options)
    : ModelAverager(options.warmup_steps), options_(std::move(options)) {
  if (options_.period < 1) {
    throw ValueError(fmt::format("a model averager's period is {}; it must be at least 1", options_.period));
  }
  if (options_.period == 1) {
    log(LogLevel::warn, "models are averaged after every step: averaging gradients does the same, for less");
  }
  if (!options_.process_group) options_.process_group = require_current_process_group("PeriodicModelAverager");
}

ProcessGroupPtr PeriodicModelAverager::group_at(std::int64_t step) const {
  return (step - options_.warmup_steps) % options_.period == 0 ? options_.process_group : nullptr;
}

HierarchicalModelAverager::HierarchicalModelAverager(HierarchicalModelAveragerOptions options)
    : ModelAverager(options.warmup_steps) {
  const auto& levels = options.period_group_sizes;
  const auto refuse = [](const std::string& why) {
    throw ValueError(fmt::format("a hierarchical model averager's period_group_sizes: {}", why));
  };
  if (levels.empty()) refuse("there are none");
  const auto group = options.process_group ? std::move(options.process_group)
                                           : require_current_process_group("HierarchicalModelAverager");
  const std::int64_t ranks = group->size();
  std::pair<std::int64_t, std::int64_t> last{0, 0};
  for (const auto& [period, size] : levels) {
    if (period <= last.first)
      refuse(fmt::format("period {} comes after {}; they must rise from 1 on", period, last.first));
    if (size <= last.second) refuse(fmt::format("size {} comes after {}; they must rise from 1 on", size, last.second));
    if (ranks % size != 0) refuse(fmt::format("{} ranks are no whole number of groups of {}", ranks, size));
    last = {period, size};
  }
  if (last.second != ranks)
    refuse(fmt::format("the last size is {}; it must be that of the group, {}", last.second, ranks));

  for (const auto& [period, size] : levels) {
    if (size == ranks) {
      groups_.emplace_back(period, group);
      continue;
    }
    ProcessGroupPtr mine;
    for (std::int64_t first = 0; first < ranks; first += size) {
      std::vector<int> members(static_cast<std::size_t>(size));
      std::iota(members.begin(), members.end(), static_cast<int>(first));
      if (auto part = group->split_group(members)) mine = std::move(part);
    }
    groups_.emplace_back(period, std::move(mine));
  }
}

ProcessGroupPtr HierarchicalModelAverager::group_at(std::int64_t step) const {
  const auto at =
      std::find_if(groups_.rbegin(), groups_.rend(), [step](const auto& each) { return step % each.first == 0; });
  return at == groups_.rend() ? nullptr : at->second;
}

PostLocalSgdOptimizer::PostLocalSgdOptimizer(torch::optim::Optimizer& inner, std::shared_ptr<ModelAverager> averager)
    : PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &inner),
                            std::move(averager)) {}

PostLocalSgdOptimizer::PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer> inner,
                                             std::shared_ptr<ModelAverager> averager)
    : inner_(std::move(inner)), averager_(std::move(averager)) {
  if (!inner_) throw ValueError("PostLocalSgdOptimizer needs an optimizer, not null");
  if (!averager_) throw ValueError("PostLocalSgdOptimizer needs a model averager, not null");
}

at::Tensor PostLocalSgdOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  auto loss = inner_->step(std::move(closure));
  averager_->average_parameters(std::as_const(*inner_).param_groups());
  return loss;
}

void PostLocalSgdOptimizer::save(torch::serialize::OutputArchive& archive) const {
  inner_->save(archive);
  archive.write(step_key, c10::IValue(averager_->step()));
}

void PostLocalSgdOptimizer::load(torch::serialize::InputArchive& archive) {
  inner_->load(archive);
  c10::IValue step;
  if (archive.try_read(step_key, step)) {
    averager_->set_step(step.toInt());
  } else {
    log(LogLevel::warn, "the optimizer's checkpoint has no step of a model averager: averaging begins at step 0");
    averager_->set_step(0);
  }
}

StateDict PostLocalSgdOptimizer::state_dict() const {
  require_known_optimizer(*inner_);
  StateDict state;
  state.add("inner", optimizer_state_dict(*inner_, *inner_));
  state.set(step_key, averager_->step());
  return state;
}

void PostLocalSgdOptimizer::check_state_dict(const StateDict& state) const {
  check_optimizer_state(*inner_, state.part("inner"));
}

void PostLocalSgdOptimizer::load_state_dict(const StateDict& state) {
  require_known_optimizer(*inner_);
  const auto step = state.get<std::int64_t>(step_key);
  LoadedOptimizerState(*inner_, state.part("inner")).install(*inner_, *inner_);
  averager_->set_step(step);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const PostLocalSgdOptimizer& optimizer) {
  optimizer.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, PostLocalSgdOptimizer& optimizer) {
  optimizer.load(archive);
  return archive;
}

}  // namespace cohort
