// SPDX-License-Identifier: BSD-3-Clause
//
// Operators of libtorch, as the fallback of the library's dispatch key sees them.
#include <ATen/core/grad_mode.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "torch/capture/graph_values.h"
#include "torch/capture/instruction_name.h"
#include "torch/capture/operator_traits.h"
#include "torch/capture/recorder.h"
#include "torch/capture/refusals.h"
#include "torch/dispatch/fallback.h"
#include "torch/functional/issuing_group.h"

namespace cohort::recording {

namespace {

/// A number that libtorch has made a tensor without dimensions of.
bool is_wrapped_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

/// Autograd may keep the number for backward, which would have that of the recording.
void refuse_gradient_with_number(const torch::jit::Stack& stack, std::size_t begin, const HostArgument& scope,
                                 const c10::OperatorHandle& op) {
  const auto has_gradient = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
  };
  if (!at::GradMode::is_enabled() ||
      std::none_of(stack.begin() + static_cast<std::ptrdiff_t>(begin), stack.end(), has_gradient)) {
    return;
  }
  throw CaptureError(CaptureRefusal::changing_number,
                     fmt::format("{} with the HostArgument \"{}\"", name_of(op), scope.name()),
                     "its backward may need the number, and a replay would use that of the recording",
                     {"Use a HostArgument without gradients (torch::NoGradGuard), as optimizers do.",
                      "A number that takes part in forward can be a tensor that is an argument of the step."});
}

constexpr std::string_view host_write_hint =
    "Make the tensor before the step and pass it as an argument, or fill it with an operator (torch::full, copy_).";

}  // namespace

Instruction Recorder::describe(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                               const torch::jit::Stack& stack) {
  Instruction instruction;
  OperatorCall call{.op = op, .keys = keys};
  const auto& arguments = op.schema().arguments();
  const auto begin = stack.size() - arguments.size();
  const auto& traits = traits_of(op);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = stack[begin + i];
    const auto* const alias = arguments[i].alias_info();
    const auto& quiet = traits.quietly_written;
    const bool is_written = (alias != nullptr && alias->isWrite()) || traits.written_argument == i ||
                            std::find(quiet.begin(), quiet.end(), i) != quiet.end();
    const auto place = [&](const at::Tensor& tensor, int in_list) {
      const auto id = value_of(tensor, op.operator_name().name);
      if (!is_written && traits.reads_elements && tensor.numel() > 0 && table_.is_uninitialized(tensor)) {
        throw CaptureError(
            CaptureRefusal::host_write,
            fmt::format("{}, argument {}: {}", name_of(op), arguments[i].name(), tensor_text(tensor)),
            "no operator of the step has written this memory: the host did, through a pointer, and a replay would not",
            {std::string(host_write_hint)});
      }
      instruction.tensors.push_back({.position = i, .in_list = in_list, .value = id});
      (is_written ? instruction.writes : instruction.reads).push_back(id);
    };
    if (is_wrapped_number(value) && HostArgument::is_given(arguments[i].name())) {
      call.arguments.emplace_back();  // bind_host_numbers() gives it
    } else if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined()) place(tensor, -1);
      call.arguments.push_back(tensor.defined() ? c10::IValue() : value);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      auto list = value.toList().copy();
      for (std::size_t k = 0; k < list.size(); ++k) {
        const c10::IValue element = list.get(k);
        if (!element.isTensor() || !element.toTensor().defined()) continue;
        place(element.toTensor(), static_cast<int>(k));
        list.set(k, at::Tensor());
      }
      call.arguments.emplace_back(std::move(list));
    } else {
      call.arguments.push_back(value);
    }
  }
  instruction.action = std::move(call);
  return instruction;
}

void Recorder::bind_host_numbers(Instruction& instruction, const torch::jit::Stack& stack) {
  auto& call = *instruction.as<OperatorCall>();
  const auto& arguments = call.op.schema().arguments();
  const auto begin = stack.size() - arguments.size();
  for (const auto* scope = HostArgument::innermost(); scope != nullptr; scope = scope->outer()) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != scope->name()) continue;
      const auto& value = stack[begin + i];
      const bool is_tensor = is_wrapped_number(value);
      if (!is_tensor && !value.isScalar()) continue;
      const auto given = is_tensor ? value.toTensor().item() : value.toScalar();
      if (given.toComplexDouble() != scope->value().toComplexDouble()) {
        throw CaptureError(CaptureRefusal::unsupported_call,
                           fmt::format("{}, argument {}", name_of(call.op), scope->name()),
                           "the operator was called with another number than the HostArgument of this name has",
                           {"Call the operator with value() of the HostArgument."});
      }
      refuse_gradient_with_number(stack, begin, *scope, call.op);
      call.host_numbers.push_back({.position = i, .function = scope->function(), .is_tensor = is_tensor});
    }
  }
}

void Recorder::add_results(Instruction& instruction, const torch::jit::Stack& stack) {
  const auto& op = instruction.as<OperatorCall>()->op;
  const auto& returns = op.schema().returns();
  const auto begin = stack.size() - returns.size();
  const auto add = [&](const at::Tensor& tensor, std::size_t position, int in_list) {
    if (!tensor.defined()) return;
    if (!is_plain(tensor)) {
      throw CaptureError(CaptureRefusal::unsupported_operator,
                         fmt::format("{}, which returns {}", name_of(op), tensor_text(tensor)),
                         "a recording knows tensors by their memory, and the result is sparse, quantized or has none",
                         {"Use dense tensors in the step."});
    }
    if (table_.find(tensor)) return;
    const auto value = add_value(tensor, GraphValue::Origin::result);
    instruction.results.push_back({.position = position, .in_list = in_list, .value = value});
    if (traits_of(op).returns_uninitialized) table_.mark_uninitialized(tensor);
  };
  for (std::size_t i = 0; i < returns.size(); ++i) {
    const auto& value = stack[begin + i];
    if (value.isTensor()) {
      add(value.toTensor(), i, -1);
    } else if (value.isTensorList()) {
      int index = 0;
      for (const at::Tensor& each : value.toTensorVector()) add(each, i, index++);
    }
  }
}

void Recorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Instruction instruction;
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(wrapper_key);
  std::vector<at::Tensor> written;
  record([&] {
    if (const auto* const refusal = refusal_of(op, *stack)) throw error_of(*refusal, call_text(op, *stack));
    instruction = describe(op, keys, *stack);
    bind_host_numbers(instruction, *stack);
    name_group(instruction, *stack);
    written = written_tensors(instruction, *stack);
  });
  {
    const IssueObserver unobserved({});  // the operator is the instruction, whatever it does on groups
    op.redispatchBoxed(keys, stack);
  }
  record([&] {
    add_results(instruction, *stack);
    for (const auto& each : written) table_.mark_written(each);
    // A view that shows what is a value already, such as detach(), has nothing to replay, and neither has a question of
    // the host (equal) that the recording answers for all replays.
    if (instruction.results.empty() && instruction.writes.empty() &&
        (traits_of(op).is_view || traits_of(op).is_query)) {
      return;
    }
    add(std::move(instruction));
  });
}

void Recorder::name_group(Instruction& instruction, const torch::jit::Stack& stack) {
  auto& call = *instruction.as<OperatorCall>();
  const auto& traits = traits_of(call.op);
  call.is_wait = traits.is_wait;
  if (!traits.group_argument) return;
  const auto first = stack.size() - call.arguments.size();
  const auto issuer = functional::issuer_named(stack[first + *traits.group_argument].toStringRef());
  call.group = issuer.group.shared_from_this();
  call.is_blocking = issuer.is_blocking;
  add_group(call.group);
}

std::vector<at::Tensor> Recorder::written_tensors(const Instruction& instruction, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> written;
  const auto& writes = instruction.writes;
  const auto first = stack.size() - instruction.as<OperatorCall>()->arguments.size();
  for (const auto& each : instruction.tensors) {
    if (std::find(writes.begin(), writes.end(), each.value) == writes.end()) continue;
    const auto& value = stack[first + each.position];
    written.push_back(each.in_list < 0 ? value.toTensor()
                                       : value.toListRef()[static_cast<std::size_t>(each.in_list)].toTensor());
  }
  return written;
}

}  // namespace cohort::recording
