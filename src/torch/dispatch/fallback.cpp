// SPDX-License-Identifier: BSD-3-Clause
//
// Runs for every operator on a distributed tensor, so looking at the arguments must cost nanoseconds: it compares tags and
// bits of key sets, and touches no reference count.
#include "torch/dispatch/fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <cstddef>
#include <optional>

#include "torch/capture/recorder.h"
#include "torch/dispatch/composite.h"
#include "torch/dtensor/dispatch.h"
#include "torch/functional/async_tensor.h"

namespace cohort {

namespace {

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

void look_at(const c10::IValue& value, const c10::OperatorHandle& op, Wrappers& found) {
  const auto& impl = *value.unsafeToTensorImpl();
  if (!impl.key_set().has(wrapper_key)) [[likely]]
    return;
  // The key alone says too little: set_data() copies it into tensors of other types.
  if (dtensor::is_distributed_impl(impl)) {
    found.are_distributed = true;
  } else if (functional::is_async_impl(impl)) {
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

void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static constexpr c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, wrapper_key);
  const auto found = wrappers_among(op, *stack);
  std::optional<functional::AwaitedArguments> awaited;
  if (found.are_async && !found.are_distributed) [[unlikely]] {
    if (is_composite(op)) return run_composite(op, stack);  // which may be made of views, such as narrow()
    if (functional::run_view_of_async(op, keys & below, stack)) return;
  }
  if (found.are_async) [[unlikely]]
    awaited.emplace(op, stack);
  if (found.are_distributed) return dtensor::dispatch(op, stack);
  if (auto* const recorder = recording::Recorder::active()) return recorder->run(op, keys & below, stack);
  if (!found.are_async && run_libtorchs_kernel(op, keys, stack)) return;
  // The key came from this thread's state and not from an argument, or the arguments are plain by now.
  const c10::impl::ExcludeDispatchKeyGuard guard(wrapper_key);
  op.redispatchBoxed(keys & below, stack);
}

const WrapperFallback registered(c10::KernelFunction::makeFromBoxedFunction<&fall_back>());

}  // namespace

void require_fallback() noexcept {}

}  // namespace cohort
