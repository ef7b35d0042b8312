// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/mixed_precision.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <unordered_set>
#include <utility>

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
  if (!how_.param_dtype) return;
  for (auto& each : parameters) {
    if (each.is_floating_point()) parameters_.push_back({.tensor = std::move(each)});
  }
}

LowPrecision::~LowPrecision() {
  put_masters();
}

void LowPrecision::put_copies(bool casts_anew) {
  if (has_copies_) return;
  const at::NoGradGuard no_grad;
  for (auto& each : parameters_) {
    if (casts_anew || !each.copy.defined()) each.copy = each.tensor.variable_data().to(*how_.param_dtype);
  }
  has_copies_ = true;  // nothing throws from here on
  for (auto& each : parameters_) {
    each.master = each.tensor.variable_data();
    put_data(each.tensor, each.copy);
  }
}

void LowPrecision::put_masters() {
  if (!std::exchange(has_copies_, false)) return;
  const at::NoGradGuard no_grad;
  for (auto& each : parameters_) put_data(each.tensor, std::exchange(each.master, at::Tensor()));
}

void LowPrecision::begin_forward() {
  const std::lock_guard lock(mutex_);
  put_masters();  // which a failed backward may not have done yet
  put_copies(true);
}

void LowPrecision::end_forward(bool keeps_copies) {
  const std::lock_guard lock(mutex_);
  put_masters();
  if (keeps_copies) return;
  for (auto& each : parameters_) each.copy = at::Tensor();
}

void LowPrecision::end_backward() {
  end_forward(false);
}

// --- backward

/// Ends with the backward, also if that fails: then what was queued for its end is not called, but dropped.
class LowPrecision::Backward {
 public:
  explicit Backward(const std::shared_ptr<LowPrecision>& its) : its_(its) {}
  ~Backward() { end(); }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  void end() {
    if (const auto its = std::exchange(its_, {}).lock()) its->end_backward();
  }

 private:
  std::weak_ptr<LowPrecision> its_;
};

void LowPrecision::begin_backward() {
  const std::lock_guard lock(mutex_);
  if (has_copies_) return;
  const auto backward = std::make_shared<Backward>(shared_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([backward] { backward->end(); });
  put_copies(false);
}

void LowPrecision::watch_backwards_of(const std::vector<at::Tensor*>& outputs) {
  using torch::autograd::variable_list;
  struct Hook : torch::autograd::FunctionPreHook {
    explicit Hook(const std::shared_ptr<LowPrecision>& its) : weak(its) {}
    variable_list operator()(const variable_list& gradients) override {
      if (const auto its = weak.lock()) its->begin_backward();
      return gradients;
    }
    std::weak_ptr<LowPrecision> weak;
  };
  std::unordered_set<const torch::autograd::Node*> watched;  // one function may have made several outputs
  for (const auto* const each : outputs) {
    if (!each->defined()) continue;
    const auto& function = each->grad_fn();
    if (function == nullptr || !watched.insert(function.get()).second) continue;
    function->add_pre_hook(std::make_unique<Hook>(shared_from_this()));
  }
}

// --- the rest

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
