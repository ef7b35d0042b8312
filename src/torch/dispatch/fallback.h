// SPDX-License-Identifier: BSD-3-Clause
//
// The one fallback on the dispatch key of the library's own tensors (results in flight, distributed tensors). Every
// operator that has such a tensor among its arguments arrives there, and every one of a thread whose work is observed
// (step_observer.h). How it runs, the folder that makes the tensors says:
//
//   const TensorHandler handler(DistributedTensors{.impl = &typeid(DTensorImpl), .run = &dispatch});
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <typeinfo>

#include "torch/compat/wrapper_key.h"  // IWYU pragma: export

namespace cohort {

/// Makes sure that a program linked statically contains the registration. Called where operators are to arrive there.
void require_fallback() noexcept;

using RunOperator = void (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// How operators run that have results in flight among their arguments (src/torch/functional).
struct TensorsInFlight {
  const std::type_info* impl = nullptr;  ///< by which they are known: that of their TensorImpl
  /// If the operator makes a view of one, runs it with these keys, without waiting, and returns true.
  bool (*run_view)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) = nullptr;
  /// Waits for them and calls `run` with plain tensors in their place.
  void (*run_awaited)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                      RunOperator run) = nullptr;
};

/// Likewise distributed tensors (src/torch/dtensor).
struct DistributedTensors {
  const std::type_info* impl = nullptr;
  RunOperator run = nullptr;
};

/// While a library is loaded, before there are such tensors: an object of static storage duration, where they are made.
struct TensorHandler {
  explicit TensorHandler(const TensorsInFlight& tensors) noexcept;
  explicit TensorHandler(const DistributedTensors& tensors) noexcept;
};

}  // namespace cohort
