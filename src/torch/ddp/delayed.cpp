// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/delayed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/engine.h>

#include "torch/ddp/bucket.h"

namespace cohort::ddp {

Delayed::Delayed(ProcessGroupPtr group, std::vector<std::pair<std::string, at::Tensor>> parameters,
                 const at::Tensor& trigger)
    : group_(std::move(group)), parameters_(std::move(parameters)) {
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : parameters_) elements += tensor.numel();
  const auto& first = parameters_.front().second;
  flat_ = allocate_flat(*group_, elements, at::TensorOptions(first.device()).dtype(first.scalar_type()), true);
  flat_.zero_();
  std::int64_t place = 0;
  for (const auto& [name, tensor] : parameters_) {
    views_.push_back(view_like(flat_, place, tensor));
    place += tensor.numel();
  }
  hook_.emplace(trigger, [its = group_, flat = flat_, syncs = syncs_] {
    if (!*syncs) return;
    const at::NoGradGuard no_grad;
    flat.div_(its->size());
    const auto work = its->all_reduce(buffer_of(flat), {.async_op = true, .stream = current_stream(flat)});
    // Backward does not return before it is there.
    torch::autograd::Engine::get_default_engine().queue_callback([work, flat] { work.wait_on(current_stream(flat)); });
  });
}

void Delayed::attach_gradients() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    auto& gradient = parameters_[i].second.mutable_grad();
    if (gradient.defined()) continue;
    views_[i].zero_();
    gradient = views_[i];
  }
}

std::vector<at::Tensor> Delayed::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : parameters_) all.push_back(tensor);
  return all;
}

}  // namespace cohort::ddp
