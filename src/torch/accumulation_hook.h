// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace cohort {

/// Calls a function each time a gradient was accumulated into a parameter, on the thread that did so. It owns the
/// parameter's gradient accumulator: autograd itself does not keep it alive, and the hook would never fire.
class AccumulationHook {
 public:
  AccumulationHook(const at::Tensor& parameter, std::function<void()> call)
      : accumulator_(torch::autograd::impl::grad_accumulator(parameter)),
        key_(accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [call = std::move(call)](const torch::autograd::variable_list& outputs,
                                     const torch::autograd::variable_list& /*inputs*/) {
              call();
              return outputs;
            }))) {}
  ~AccumulationHook() {
    if (accumulator_ != nullptr) accumulator_->del_post_hook(key_);
  }
  AccumulationHook(AccumulationHook&& other) noexcept
      : accumulator_(std::exchange(other.accumulator_, nullptr)), key_(other.key_) {}
  AccumulationHook& operator=(AccumulationHook&&) = delete;
  AccumulationHook(const AccumulationHook&) = delete;
  AccumulationHook& operator=(const AccumulationHook&) = delete;

  /// The accumulator's node in the autograd graph.
  const void* node() const { return accumulator_.get(); }

 private:
  decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) accumulator_;
  std::uintptr_t key_;
};

}  // namespace cohort
