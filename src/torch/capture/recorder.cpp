// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/recorder.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "group/issue_notifier.h"
#include "torch/capture/graph_values.h"
#include "torch/capture/waits.h"
#include "torch/compat/wrapper_key.h"
#include "torch/dtensor/impl.h"
#include "torch/functional/async_tensor.h"
#include "torch/written.h"

namespace cohort::recording {

at::Tensor plain_part(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (const auto* const distributed = dtensor::find_impl(tensor)) return plain_part(distributed->local());
  if (const auto* const async = functional::find_async(tensor)) return async->wait();
  return tensor;
}

Recorder::Recorder(std::span<const at::Tensor> arguments, std::vector<WatchedTensor> parameters, Options options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const auto& each : arguments) {
    const auto plain = plain_part(each);
    if (!plain.defined()) {
      program_.arguments.push_back(program_.values.size());
      program_.values.emplace_back();
      continue;
    }
    if (!is_plain(plain)) {
      throw CaptureError(CaptureRefusal::unsupported_call, "an argument that is sparse or has no memory",
                         "a recording knows tensors by their memory", {"Pass dense tensors."});
    }
    // The same tensor twice is one value, but has two places in the call.
    const auto known = table_.find(plain);
    program_.arguments.push_back(known ? *known : add_value(plain, GraphValue::Origin::argument));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto is_it = [&](const WatchedTensor& each) { return each.tensor.is_same(arguments[i]); };
    if (std::none_of(parameters_.begin(), parameters_.end(), is_it)) {
      leaves_.add(arguments[i], fmt::format("tensor {} of the arguments", i + 1));
    }
  }
  for (const auto& each : parameters_) {
    const auto gradient = plain_part(each.tensor.grad());
    if (!gradient.defined()) {
      program_.gradients.push_back(std::nullopt);
      continue;
    }
    const auto known = table_.find(gradient);
    if (known) program_.values[*known].has_two_names = true;
    program_.gradients.push_back(known ? *known
                                       : add_value(gradient, GraphValue::Origin::gradient, each.name + ".grad"));
  }
  for (const auto& each : parameters_) {
    const auto parameter = plain_part(each.tensor);
    if (!parameter.defined()) continue;
    if (const auto known = table_.find(parameter)) {
      program_.values[*known].has_two_names = true;
    } else {
      program_.values[add_constant(parameter)].shown.name = each.name;
    }
  }
}

ValueId Recorder::add_value(const at::Tensor& tensor, GraphValue::Origin origin, std::string name) {
  const auto value = program_.values.size();
  const auto lifetime =
      origin == GraphValue::Origin::result ? TensorTable::Lifetime::step : TensorTable::Lifetime::permanent;
  table_.add(tensor, value, lifetime);
  program_.values.push_back(
      {.shown = graph_value_of(tensor, origin, std::move(name)), .storage = table_.storage_of(tensor)});
  return value;
}

ValueId Recorder::add_constant(const at::Tensor& tensor) {
  const auto value = add_value(tensor, GraphValue::Origin::constant);
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(wrapper_key);
  // An object of its own: the user's may be given other memory.
  program_.values[value].constant = tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : alias_of(tensor);
  return value;
}

ValueId Recorder::add_alias(const at::Tensor& tensor, const TensorTable::Place& base) {
  static const auto as_strided = c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", "");
  const auto& from = program_.values[base.value].shown;
  if (from.dtype != dtype_name(tensor.scalar_type())) {
    throw CaptureError(CaptureRefusal::unsupported_call, tensor_text(tensor),
                       "it shows the memory of a tensor with another dtype, without an operator that made it", {});
  }
  Instruction instruction;
  instruction.action =
      OperatorCall{.op = as_strided,
                   .keys = tensor.key_set() & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, wrapper_key),
                   .arguments = {c10::IValue(), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()}};
  instruction.tensors.push_back({.position = 0, .in_list = -1, .value = base.value});
  instruction.reads.push_back(base.value);
  const auto value = add_value(tensor, GraphValue::Origin::result);
  instruction.results.push_back({.position = 0, .in_list = -1, .value = value});
  add(std::move(instruction));
  return value;
}

ValueId Recorder::value_of(const at::Tensor& tensor, std::string_view used_by) {
  if (!is_plain(tensor)) {
    throw CaptureError(CaptureRefusal::unsupported_operator, fmt::format("{} with {}", used_by, tensor_text(tensor)),
                       "a recording knows tensors by their memory, and this one is sparse, quantized or has none",
                       {"Use dense tensors in the step."});
  }
  if (const auto known = table_.find(tensor)) return *known;
  if (tensor.numel() > 0) {
    if (const auto place = table_.find_memory(tensor)) return add_alias(tensor, *place);
  }
  leaves_.add(tensor, fmt::format("{}, an operand of {}", tensor_text(tensor), used_by));
  return add_constant(tensor);
}

void Recorder::add(Instruction instruction) {
  if (region_depth_ > 0) instruction.region = regions_;
  if (options_.source_lines) instruction.calls = call_stack();
  program_.instructions.push_back(std::move(instruction));
}

void Recorder::begin_call(const char* name, std::vector<CallConstant> constants, const at::Tensor& tensor) {
  const auto plain = plain_part(tensor);  // may wait for a collective, which is recorded
  record([&] {
    if (region_depth_++ > 0) return;
    DistributedCall call{.name = name, .constants = {}};
    for (auto& each : constants) {
      call.constants.push_back({.name = std::move(each.name), .text = std::move(each.text)});
    }
    const auto value = value_of(plain, name);
    ++regions_;
    add({.action = std::move(call), .reads = {value}});
  });
}

void Recorder::end_call() {
  record([&] { --region_depth_; });
}

void Recorder::add_host_action(const std::function<void()>& function) {
  record([&] { add({.action = HostCall{function}}); });
}

void Recorder::refuse(const CaptureError& why) {
  record([&] { throw CaptureError(why); });
}

LeftTensor Recorder::left_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  LeftTensor left;
  if (const auto* const distributed = dtensor::find_impl(tensor)) {
    left.layout = distributed->layout();
    left.sizes = tensor.sizes().vec();
    left.strides = tensor.strides().vec();
  }
  const auto plain = plain_part(tensor);
  if (!is_plain(plain)) {
    throw CaptureError(CaptureRefusal::unsupported_call, tensor_text(plain), "the step leaves a tensor that is sparse",
                       {});
  }
  const auto known = table_.find(plain);
  left.value = known ? *known : add_constant(plain);
  return left;
}

Program Recorder::finish(std::span<const at::Tensor> results) {
  leaves_.refuse_new_gradients();
  for (const auto& each : results) program_.outputs.push_back(left_tensor(each));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto left = left_tensor(parameters_[i].tensor.grad());
    if (left.value == program_.gradients[i]) continue;
    program_.final_gradients.push_back({.parameter = i, .tensor = std::move(left)});
  }
  for (auto& each : program_.values) each.storage = table_.current_number(each.storage);
  add_missing_waits(program_);
  return std::move(program_);
}

namespace {

constexpr OtherThreads engine_threads{
    .are_observed = []() noexcept { return Recorder::active() != nullptr; },
    .issued = [](const Issue& issue) { Recorder::active()->observe(issue); },
    .waited = [](const Work& work) { Recorder::active()->observe_wait(work); },
};

}  // namespace

RecordingScope::RecordingScope(Recorder& recorder)
    : operators_(recorder),
      operations_([&recorder](const Issue& issue) { recorder.observe(issue); },
                  [&recorder](const Work& work) { recorder.observe_wait(work); }) {
  observe_other_threads(engine_threads);
}

}  // namespace cohort::recording
