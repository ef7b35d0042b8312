// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "torch/capture/recorder.h"
#include "torch/host_numbers.h"

namespace cohort {

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradOptions& options) {
  const double p = options.norm_type;
  if (!(p > 0)) throw ValueError(fmt::format("clip_grad_norm_: norm_type {} is none", p));
  if (!(max_norm >= 0)) throw ValueError(fmt::format("clip_grad_norm_: max_norm {} is negative", max_norm));
  const at::NoGradGuard no_grad;
  std::unordered_set<c10::TensorImpl*> seen;
  std::vector<at::Tensor> values;
  at::Device device = options.process_group ? device_without_tensors(*options.process_group) : at::Device(at::kCPU);
  for (const auto& parameter : parameters) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (seen.size() == 1) device = parameter.device();
    auto gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      // Coalesced, since rows that occur twice would count twice.
      if (!gradient.is_coalesced()) parameter.mutable_grad() = gradient = gradient.coalesce();
      gradient = gradient._values();
    }
    values.push_back(std::move(gradient));
  }

  at::Tensor total;
  if (values.empty()) {
    total = at::zeros({}, at::TensorOptions(at::kFloat).device(device));
  } else {
    std::vector<at::Tensor> norms;
    for (const auto& each : values) {
      if (each.numel() > 0) norms.push_back(at::linalg_vector_norm(each, p).to(values.front().device()));
    }
    total = norms.empty() ? at::zeros({}, values.front().options()) : at::linalg_vector_norm(at::stack(norms), p);
  }
  if (options.process_group != nullptr) {
    // In double, since ranks may have parameters of different dtypes and a power of a norm may exceed float's range.
    const bool largest = std::isinf(p);
    auto shared = total.to(at::kDouble);
    shared = (largest ? shared : shared.pow(p)).reshape({1}).contiguous();
    options.process_group->all_reduce(
        buffer_of(shared), {.op = largest ? ReduceOp::max() : ReduceOp::sum(), .stream = current_stream(shared)});
    total = (largest ? shared : shared.pow(1 / p)).reshape({}).to(total.scalar_type());
  }
  if (options.error_if_nonfinite) {
    recording::refuse_to_record(CaptureRefusal::host_read, "clip_grad_norm_ with error_if_nonfinite",
                                "the host reads the norm to throw the error, and a replay would not",
                                {"Return the norm from the step, and look at it afterwards."});
    const auto norm = total.item<double>();
    if (!std::isfinite(norm)) {
      throw Error(fmt::format("clip_grad_norm_: the norm of the gradients is {}: nothing was scaled", norm));
    }
  }
  // Multiplies even by 1: finding out whether that is needed would have to wait for the device.
  const auto factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (auto& each : values) each.mul_(factor.to(each.device()));
  return total;
}

}  // namespace cohort
