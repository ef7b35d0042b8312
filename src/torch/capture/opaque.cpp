// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/opaque.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/capture_hook.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "torch/capture/graph_values.h"
#include "torch/capture/recorder.h"
#include "torch/dispatch/fallback.h"

namespace cohort::recording {

namespace {

/// The dispatch of operators as it is outside of recordings and replays, for this thread, until the end of the scope.
class UsersDispatch {
 public:
  UsersDispatch() : before_(c10::impl::tls_local_dispatch_key_set()) {
    auto keys = before_;
    keys.included_ = keys.included_.remove(wrapper_key);
    if (!c10::InferenceMode::is_enabled()) {
      keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    }
    c10::impl::_force_tls_local_dispatch_key_set(keys);
  }
  ~UsersDispatch() { c10::impl::_force_tls_local_dispatch_key_set(before_); }
  UsersDispatch(const UsersDispatch&) = delete;
  UsersDispatch& operator=(const UsersDispatch&) = delete;

 private:
  c10::impl::LocalDispatchKeySet before_;
};

bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  return a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage()) &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return fmt::format("{} with strides [{}]", tensor_text(tensor), fmt::join(tensor.strides(), ", "));
}

std::string text_of(const OpaqueCall& call, const Instruction& instruction, const std::vector<Value>& values,
                    std::size_t position) {
  const auto& returned = call.returned[position];
  if (returned.is_undefined) return "no tensor";
  if (returned.input) return fmt::format("its argument {}", *returned.input + 1);
  const auto place = std::find_if(instruction.results.begin(), instruction.results.end(),
                                  [&](const TensorPlace& each) { return each.position == position; });
  const auto& shown = values[place->value].shown;
  return fmt::format("{} with strides [{}]", to_string(shown), fmt::join(shown.strides, ", "));
}

[[noreturn]] void refuse(const OpaqueCall& call, std::size_t position, const std::string& is, const std::string& was) {
  throw AssertionError(
      fmt::format("the opaque function \"{}\" returned {} as result {}, and {} when the step was recorded: it must "
                  "return tensors of the same dtype, sizes and strides each time, or the same argument",
                  call.name, is, position + 1, was));
}

}  // namespace

std::vector<at::Tensor> call_outside(const OpaqueCall& call, const std::vector<at::Tensor>& inputs) {
  const UsersDispatch dispatch;
  const at::NoGradGuard no_grad;
  const IssueObserver unobserved({});
  return call.function(inputs);
}

std::vector<OpaqueCall::Returned> classify(const std::vector<at::Tensor>& results,
                                           const std::vector<at::Tensor>& inputs) {
  std::vector<OpaqueCall::Returned> all;
  for (const auto& result : results) {
    auto& returned = all.emplace_back();
    returned.is_undefined = !result.defined();
    for (std::size_t i = 0; i < inputs.size() && result.defined() && !returned.input; ++i) {
      if (inputs[i].defined() && is_same_tensor(result, inputs[i])) returned.input = i;
    }
  }
  return all;
}

std::vector<at::Tensor> call_again(const Instruction& instruction, const std::vector<Value>& values,
                                   const std::vector<at::Tensor>& inputs) {
  const auto& call = *instruction.as<OpaqueCall>();
  auto results = call_outside(call, inputs);
  if (results.size() != call.returned.size()) {
    refuse(call, results.size(), fmt::format("{} results, none", results.size()),
           fmt::format("{} results", call.returned.size()));
  }
  const auto returned = classify(results, inputs);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (returned[i] == call.returned[i]) continue;
    refuse(call, i, returned[i].input ? fmt::format("its argument {}", *returned[i].input + 1) : text_of(results[i]),
           text_of(call, instruction, values, i));
  }
  for (const auto& each : instruction.results) {
    const auto& shown = values[each.value].shown;
    const auto& result = results[each.position];
    if (result.sizes() == at::IntArrayRef(shown.sizes) && result.strides() == at::IntArrayRef(shown.strides) &&
        dtype_name(result.scalar_type()) == shown.dtype && result.device().str() == shown.device) {
      continue;
    }
    refuse(call, each.position, text_of(result), text_of(call, instruction, values, each.position));
  }
  return results;
}

}  // namespace cohort::recording

namespace cohort {

std::vector<at::Tensor> opaque_call(const std::string& name, const OpaqueFunction& function,
                                    const std::vector<at::Tensor>& inputs) {
  if (auto* const recorder = recording::Recorder::active()) {
    return recorder->run_opaque({.name = name, .function = function}, inputs);
  }
  const at::NoGradGuard no_grad;
  return function(inputs);
}

TensorHook opaque_hook(std::string name, TensorHook hook) {
  return [name = std::move(name), function = OpaqueFunction([hook = std::move(hook)](const auto& inputs) {
                                    return std::vector<at::Tensor>{hook(inputs.front())};
                                  })](const at::Tensor& gradient) {
    return opaque_call(name, function, {gradient}).front();
  };
}

}  // namespace cohort
