// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "torch/dtensor/impl.h"

namespace cohort::dtensor {

/// Runs an operator that has at least one distributed tensor among the arguments on the stack, by its rule. An operator
/// without a rule that is composed of others is taken apart; any other is a NotSupportedError.
void dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace cohort::dtensor
