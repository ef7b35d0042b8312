// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/delayed_reduction.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/engine.h>

#include "torch/ddp/bucket.h"
#include "torch/ddp/gradient_copy.h"
#include "torch/written.h"

namespace cohort::ddp {

DelayedReduction::DelayedReduction(ProcessGroupPtr process_group, std::vector<at::Tensor> parameters,
                                   const at::Tensor& trigger) {
  shared_->parameters = std::move(parameters);
  set_process_group(std::move(process_group));
  hook_.emplace(trigger, [shared = shared_] {
    if (!shared->syncs) return;
    const at::NoGradGuard no_grad;
    shared->collect();
    const auto flat = shared->flat;
    flat.div_(shared->group->size());
    for (const auto& each : shared->views) mark_written(each);  // flat has a version of its own
    const auto work = shared->group->all_reduce(buffer_of(flat), {.async_op = true, .stream = current_stream(flat)});
    // Backward does not return before the result is there.
    torch::autograd::Engine::get_default_engine().queue_callback([work, flat] { work.wait_on(current_stream(flat)); });
  });
}

void DelayedReduction::set_process_group(ProcessGroupPtr process_group) {
  auto& shared = *shared_;
  std::int64_t elements = 0;
  for (const auto& each : shared.parameters) elements += each.numel();
  const auto& first = shared.parameters.front();
  shared.flat =
      allocate_flat(*process_group, elements, at::TensorOptions(first.device()).dtype(first.scalar_type()), true);
  shared.group = std::move(process_group);
  shared.views.clear();
  std::int64_t place = 0;
  for (const auto& each : shared.parameters) {
    shared.views.push_back(view_like(shared.flat, place, each));
    place += each.numel();
  }
  shared.collect();
}

/// Includes gradients that the user has assigned meanwhile.
void DelayedReduction::Shared::collect() const {
  for (std::size_t i = 0; i < views.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) {
      clear_gradient(views[i]);
    } else if (!is_same_memory(gradient, views[i])) {
      copy_gradient(views[i], gradient);
    }
    gradient = views[i];
  }
}

void DelayedReduction::attach_gradients() {
  for (std::size_t i = 0; i < shared_->views.size(); ++i) {
    auto& gradient = shared_->parameters[i].mutable_grad();
    if (gradient.defined()) continue;
    clear_gradient(shared_->views[i]);
    gradient = shared_->views[i];
  }
}

}  // namespace cohort::ddp
