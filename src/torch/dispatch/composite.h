// SPDX-License-Identifier: BSD-3-Clause
//
// Operators that libtorch composes of others. Autograd normally takes them apart above the wrappers' key; below
// autograd and in inference mode they arrive there whole.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace cohort {

inline bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

/// Calls the operators that it is made of, on the arguments as they are. The kernel is the same for all devices.
inline void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace cohort
