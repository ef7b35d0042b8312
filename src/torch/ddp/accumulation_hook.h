// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace cohort::ddp {

/// Calls back each time a parameter's gradient was accumulated, on the thread that did it, until it is destroyed. Holds
/// the parameter's gradient accumulator: autograd alone would not, and the hook would never fire.
class AccumulationHook {
 public:
  AccumulationHook(const at::Tensor& parameter, std::function<void()> call)
      : accumulator_(torch::autograd::impl::grad_accumulator(parameter)),
        key_(accumulator_->add_post_hook(std::make_unique<Caller>(std::move(call)))) {}
  ~AccumulationHook() {
    if (accumulator_ != nullptr) accumulator_->del_post_hook(key_);
  }
  AccumulationHook(AccumulationHook&& other) noexcept
      : accumulator_(std::exchange(other.accumulator_, nullptr)), key_(other.key_) {}
  AccumulationHook& operator=(AccumulationHook&&) = delete;
  AccumulationHook(const AccumulationHook&) = delete;
  AccumulationHook& operator=(const AccumulationHook&) = delete;

  /// The node in the graph.
  const void* node() const { return accumulator_.get(); }

 private:
  class Caller final : public torch::autograd::FunctionPostHook {
   public:
    explicit Caller(std::function<void()> call) : call_(std::move(call)) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& /*inputs*/) override {
      call_();
      return outputs;
    }

   private:
    std::function<void()> call_;
  };

  decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) accumulator_;
  std::uintptr_t key_;
};

}  // namespace cohort::ddp
