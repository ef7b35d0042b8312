// SPDX-License-Identifier: BSD-3-Clause
#include "torch/hooks/hook_support.h"

#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <utility>

#include "torch/dispatch/step_observer.h"

namespace cohort::hooks {

ProcessGroupPtr group_for(ProcessGroupPtr group, std::string_view hook) {
  return group ? std::move(group) : require_current_process_group(fmt::format("the communication hook {}", hook));
}

TensorFuture averaged(ProcessGroup& group, const at::Tensor& tensor) {
  if (is_sparse(tensor)) return completed_future(sparse_all_reduce(group, tensor / group.size()));
  return all_reduce_async(group, tensor.div_(group.size()));
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

bool is_sparse(const at::Tensor& tensor) {
  return tensor.layout() != at::kStrided;
}

void expect_floats(const at::Tensor& tensor, std::string_view hook) {
  if (!at::isFloatingType(tensor.scalar_type())) {
    throw TypeError(fmt::format("the communication hook {} takes real floats, not gradients of {}", hook,
                                c10::toString(tensor.scalar_type())));
  }
}

void refuse_to_capture_counting(std::string_view what) {
  refuse_to_record(CaptureRefusal::unsupported_call, what,
                   "the host counts iterations and does different things in different ones, and a replay "
                   "would always do what the recorded one did",
                   {"Use a communication hook without such a state, such as fp16_compress.",
                    "Average models after the step, outside of it."});
}

}  // namespace cohort::hooks
