// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/unwatched_leaves.h"

#include <cohort/torch/capture_error.h>

#include <utility>

namespace cohort::recording {

namespace {

std::int64_t version_of(const at::Tensor& gradient) {
  return gradient.defined() && !gradient.is_inference() ? gradient._version() : 0;
}

}  // namespace

void UnwatchedLeaves::add(const at::Tensor& tensor, std::string name) {
  if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf()) return;
  const auto& gradient = tensor.grad();
  leaves_.push_back({.name = std::move(name), .tensor = tensor, .gradient = gradient, .version = version_of(gradient)});
}

void UnwatchedLeaves::refuse_new_gradients() const {
  for (const auto& each : leaves_) {
    const auto& gradient = each.tensor.grad();
    if (gradient.is_same(each.gradient) && version_of(gradient) == each.version) continue;
    throw CaptureError(CaptureRefusal::unsupported_call, "the gradient of " + each.name,
                       "backward accumulates it in a tensor that nothing watches, where a replay would not put it",
                       {"Watch the module whose parameter it is: {.watch = {net}}.",
                        "Or compute the gradient with torch::autograd::grad() and return it from the step."});
  }
}

}  // namespace cohort::recording
