// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/mixed_precision.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "torch/hooks/hook_support.h"
#include "torch/written.h"

namespace cohort::ddp {

namespace {

/// Does what set_data() does, except that it keeps the gradient accumulator, and with it our hooks.
void put_data(const at::Tensor& into, const at::Tensor& data) {
  into.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace

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
    put_data(each, masters_.back().to(*how_.param_dtype));
  }
}

void LowPrecision::swap_out() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) put_data(parameters_[i], masters_[i]);
  masters_.clear();
}

void LowPrecision::cast_input(at::Tensor& tensor) const {
  if (how_.param_dtype && tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(*how_.param_dtype);
}

void LowPrecision::cast_buffers(const std::vector<at::Tensor>& buffers) const {
  if (!how_.buffer_dtype) return;
  const at::NoGradGuard no_grad;
  for (const auto& each : buffers) {
    if (!each.is_floating_point()) continue;
    each.set_data(each.variable_data().to(*how_.buffer_dtype));
    mark_written(each);
  }
}

CommHook LowPrecision::reduction(const std::shared_ptr<Reducer>& reducer) const {
  const auto type = how_.reduce_dtype ? how_.reduce_dtype : how_.param_dtype;
  // A weak pointer, since the reducer owns the hook. It exists whenever it calls the hook.
  return [weak = std::weak_ptr(reducer), type](GradBucket& bucket) {
    const auto its = weak.lock();
    const auto& whole = bucket.buffer();
    if (hooks::is_sparse(whole))
      return completed_future(sparse_all_reduce(*its->process_group(), whole / its->divisor()));
    const auto real = hooks::as_real(whole);
    const auto narrow = type && *type != real.scalar_type() ? real.to(*type) : real;
    narrow.div_(its->divisor());
    return all_reduce_async(*its->process_group(), narrow).then([whole, real](const at::Tensor& sum) {
      const at::NoGradGuard no_grad;
      if (!sum.is_same(real)) real.copy_(sum);
      return whole;
    });
  };
}

}  // namespace cohort::ddp
