// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/mixed_precision.h"

#include <ATen/ATen.h>

namespace cohort::ddp {

LowPrecision::LowPrecision(const MixedPrecision& how, std::vector<at::Tensor> parameters) : how_(how) {
  for (auto& each : parameters) {
    if (each.is_floating_point()) parameters_.push_back(std::move(each));
  }
}

LowPrecision::~LowPrecision() {
  swap_out();
}

void LowPrecision::swap_in() {
  if (!how_.param_dtype || !masters_.empty()) return;
  const at::NoGradGuard no_grad;
  for (const auto& each : parameters_) {
    masters_.push_back(each.variable_data());
    each.set_data(masters_.back().to(*how_.param_dtype));
  }
}

void LowPrecision::swap_out() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) parameters_[i].set_data(masters_[i]);
  masters_.clear();
}

void LowPrecision::cast_input(at::Tensor& tensor) const {
  if (how_.param_dtype && tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(*how_.param_dtype);
}

void LowPrecision::cast_buffers(const std::vector<at::Tensor>& buffers) const {
  if (!how_.buffer_dtype) return;
  const at::NoGradGuard no_grad;
  for (const auto& each : buffers) {
    if (each.is_floating_point()) each.set_data(each.variable_data().to(*how_.buffer_dtype));
  }
}

CommHook LowPrecision::reduction(const ProcessGroupPtr& group) const {
  const auto type = how_.reduce_dtype ? how_.reduce_dtype : how_.param_dtype;
  return [group, type](GradBucket& bucket) {
    const auto whole = bucket.buffer();
    auto narrow = type && *type != whole.scalar_type() ? whole.to(*type) : whole;
    narrow.div_(group->size());
    return reduced(*group, narrow).then([whole](const at::Tensor& sum) {
      const at::NoGradGuard no_grad;
      return sum.is_same(whole) ? whole : whole.copy_(sum);
    });
  };
}

}  // namespace cohort::ddp
