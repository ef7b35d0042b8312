// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/leaf_arguments.h"

#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

namespace cohort::recording {

namespace {

std::int64_t version_of(const at::Tensor& gradient) {
  return gradient.defined() ? gradient._version() : 0;
}

}  // namespace

void LeafArguments::add(const at::Tensor& tensor, std::size_t number) {
  if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf()) return;
  const auto& gradient = tensor.grad();
  leaves_.push_back({.number = number, .tensor = tensor, .gradient = gradient, .version = version_of(gradient)});
}

void LeafArguments::refuse_new_gradients() const {
  for (const auto& each : leaves_) {
    const auto& gradient = each.tensor.grad();
    if (gradient.is_same(each.gradient) && version_of(gradient) == each.version) continue;
    throw CaptureError(CaptureRefusal::unsupported_call,
                       fmt::format("the gradient of tensor {} of the arguments", each.number),
                       "backward accumulates it in the argument, where a replay with another argument would not put it",
                       {"Compute it with torch::autograd::grad() and return it from the step.",
                        "Or detach the argument, or watch the module whose parameter it is."});
  }
}

}  // namespace cohort::recording
