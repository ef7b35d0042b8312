// SPDX-License-Identifier: BSD-3-Clause
//
// Runs for every operator on a distributed tensor, so looking at the arguments must cost nanoseconds: it compares tags
// and bits of key sets, and touches no reference count.
#include "torch/dispatch/fallback.h"

#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include "torch/dispatch/composite.h"
#include "torch/dispatch/step_observer.h"

namespace cohort {

namespace {

/// Set while the library is loaded, in whatever order its objects are made.
struct Handlers {
  TensorsInFlight in_flight{};
  DistributedTensors distributed{};
};
constinit Handlers tensor_handlers;

constexpr c10::DispatchKeySet keys_below(c10::DispatchKeySet::FULL_AFTER, wrapper_key);

struct Wrappers {
  bool are_async = false;
  bool are_distributed = false;
};

[[noreturn]] void refuse_stranger(const c10::OperatorHandle& op) {
  throw TypeError(
      fmt::format("{}: an argument is a plain tensor that set_data() has made look like a distributed tensor or a "
                  "result in flight; "
                  "give set_data() a plain tensor (to_local(), wait_tensor())",
                  op.operator_name().name));
}

bool has_type(const c10::TensorImpl& impl, const std::type_info* type) {
  return type != nullptr && typeid(impl) == *type;
}

void look_at(const c10::IValue& value, const c10::OperatorHandle& op, Wrappers& found) {
  const auto& impl = *value.unsafeToTensorImpl();
  if (!impl.key_set().has(wrapper_key)) [[likely]]
    return;
  // The key alone says too little: set_data() copies it into tensors of other types.
  if (has_type(impl, tensor_handlers.distributed.impl)) {
    found.are_distributed = true;
  } else if (has_type(impl, tensor_handlers.in_flight.impl)) {
    found.are_async = true;
  } else {
    refuse_stranger(op);
  }
}

Wrappers wrappers_among(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Wrappers found;
  for (auto i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    const auto& argument = stack[i];
    if (argument.isTensor()) {
      look_at(argument, op, found);
    } else if (argument.isList()) {
      // Elements have one type, or are optional tensors.
      for (const auto& element : argument.toListRef()) {
        if (element.isTensor()) {
          look_at(element, op, found);
        } else if (!element.isNone()) {
          break;
        }
      }
    }
  }
  return found;
}

/// The key came from this thread's state and not from an argument, or the arguments are plain by now.
void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(wrapper_key);
  op.redispatchBoxed(keys & keys_below, stack);
}

void run_on_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (auto* const observer = StepObserver::active()) return observer->run(op, keys & keys_below, stack);
  run_below(op, keys, stack);
}

void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& [in_flight, distributed] = tensor_handlers;
  const auto found = wrappers_among(op, *stack);
  if (found.are_async) [[unlikely]] {
    if (found.are_distributed) return in_flight.run_awaited(op, keys, stack, distributed.run);
    if (is_composite(op)) return run_composite(op, stack);  // which may be made of views, such as narrow()
    if (in_flight.run_view(op, keys & keys_below, stack)) return;
    return in_flight.run_awaited(op, keys, stack, &run_on_plain);
  }
  if (found.are_distributed) return distributed.run(op, keys, stack);
  if (auto* const observer = StepObserver::active()) return observer->run(op, keys & keys_below, stack);
  if (!run_libtorchs_kernel(op, keys, stack)) run_below(op, keys, stack);
}

const WrapperFallback fallback_registration(c10::KernelFunction::makeFromBoxedFunction<&fall_back>());

}  // namespace

void require_fallback() noexcept {}

TensorHandler::TensorHandler(const TensorsInFlight& tensors) noexcept {
  tensor_handlers.in_flight = tensors;
}

TensorHandler::TensorHandler(const DistributedTensors& tensors) noexcept {
  tensor_handlers.distributed = tensors;
}

}  // namespace cohort
