// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "torch/dispatch/step_observer.h"
#include "torch/host_numbers.h"
#include "torch/optim/local_gradients.h"
#include "torch/state/archive.h"

namespace cohort {

namespace {

/// The largest absolute value, computed in one pass; it is not finite if any element is not.
at::Tensor largest_of(const at::Tensor& values) {
  return at::linalg_vector_norm(values, std::numeric_limits<double>::infinity());
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  if (!options.enabled) return;
  if (!(options.init_scale > 0)) throw ValueError("GradScaler: init_scale must be positive");
  if (!(options.growth_factor > 1)) throw ValueError("GradScaler: growth_factor must be above 1");
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    throw ValueError("GradScaler: backoff_factor must be between 0 and 1");
  }
  if (options.growth_interval < 1) throw ValueError("GradScaler: growth_interval must be at least 1");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  refuse_to_record(CaptureRefusal::changing_number, "GradScaler::scale()",
                   "the host changes the scale from step to step, and a replay would have that of the recording",
                   {"Pass the scale to the step as a tensor, and multiply the loss by it."});
  return loss * scale_;
}

double GradScaler::scale() const noexcept {
  return options_.enabled ? scale_ : 1;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  auto& progress = progress_[&optimizer];
  if (progress.stage == Stage::unscaled) {
    throw Error("GradScaler: unscale_ was called for this optimizer already since the last update");
  }
  if (progress.stage == Stage::stepped) throw Error("GradScaler: unscale_ after step");

  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  auto gradients = local_gradients(parameters, "GradScaler");
  for (const auto& each : gradients) {
    if (each.gradient.defined() && each.gradient.scalar_type() == at::kHalf) {
      throw ValueError("GradScaler: a gradient in half precision cannot be unscaled: keep the parameters in float");
    }
  }
  const at::NoGradGuard no_grad;
  const double inverse = 1 / scale_;
  const auto& own_group = options_.process_group;
  const auto device = !gradients.empty()     ? gradients.front().device
                      : own_group != nullptr ? device_without_tensors(*own_group)
                                             : at::Device(at::kCPU);
  auto found = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  std::vector<ProcessGroupPtr> groups;  // also those whose ranks hold the same elements, so that all decide alike
  for (auto& each : gradients) {
    if (each.layout != nullptr) {
      for (const auto& group : each.layout->mesh.all_groups()) add_group(groups, group);
    }
    if (!each.gradient.defined()) continue;
    if (each.part.numel() > 0) found += largest_of(each.part).isfinite().logical_not().to(found.options());
    each.gradient.mul_(inverse);
  }
  if (own_group != nullptr) add_group(groups, own_group);
  for (const auto& group : groups) {
    group->all_reduce(buffer_of(found), {.op = ReduceOp::max(), .stream = current_stream(found)});
  }
  progress.found = found.item<float>() > 0;
  progress.stage = Stage::unscaled;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (progress_[&optimizer].stage == Stage::stepped) {
    throw Error("GradScaler: step was called for this optimizer already since the last update");
  }
  if (progress_[&optimizer].stage == Stage::ready) unscale_(optimizer);
  auto& progress = progress_[&optimizer];
  if (!progress.found) optimizer.step();
  progress.stage = Stage::stepped;
  return !progress.found;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale.has_value()) {
    if (!(*new_scale > 0)) throw ValueError("GradScaler: the scale must be positive");
    scale_ = *new_scale;
    progress_.clear();
    return;
  }
  bool found = false;
  bool any = false;
  for (const auto& [optimizer, progress] : progress_) {
    any = any || progress.stage != Stage::ready;
    found = found || progress.found;
  }
  if (!any) throw Error("GradScaler: update before any step or unscale_");
  if (found) {
    scale_ *= options_.backoff_factor;
    tracker_ = 0;
  } else if (++tracker_ == options_.growth_interval) {
    // The loss is multiplied in float: a scale beyond float's range would end the training.
    const double grown = scale_ * options_.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) scale_ = grown;
    tracker_ = 0;
  }
  progress_.clear();
}

template <class To>
void GradScaler::write_to(To& to) const {
  write_value(to, "scale", scale_);
  write_value(to, "growth_factor", options_.growth_factor);
  write_value(to, "backoff_factor", options_.backoff_factor);
  write_value(to, "growth_interval", options_.growth_interval);
  write_value(to, "growth_tracker", tracker_);
}

template <class From>
void GradScaler::read_from(From& from) {
  auto options = options_;
  const auto scale = read_value<double>(from, "scale");
  options.growth_factor = read_value<double>(from, "growth_factor");
  options.backoff_factor = read_value<double>(from, "backoff_factor");
  options.growth_interval = read_value<std::int64_t>(from, "growth_interval");
  tracker_ = read_value<std::int64_t>(from, "growth_tracker");
  scale_ = scale;
  options_ = std::move(options);
  progress_.clear();
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  write_to(archive);
}
void GradScaler::load(torch::serialize::InputArchive& archive) {
  read_from(archive);
}
StateDict GradScaler::state_dict() const {
  StateDict state;
  write_to(state);
  return state;
}
void GradScaler::load_state_dict(const StateDict& state) {
  read_from(state);
}

}  // namespace cohort
