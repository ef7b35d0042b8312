// SPDX-License-Identifier: BSD-3-Clause
//
// Calls of the user's code that are one instruction of a recording (cohort/torch/capture_hook.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// Calls the function as from the user's own code: nothing is recorded, and operators are dispatched as outside of a
/// replay.
std::vector<at::Tensor> call_outside(const OpaqueCall& call, const std::vector<at::Tensor>& inputs);

/// What the function returned in each place.
std::vector<OpaqueCall::Returned> classify(const std::vector<at::Tensor>& results,
                                           const std::vector<at::Tensor>& inputs);

/// Calls the function in a replay, and throws an AssertionError unless its results are like those of the recording.
std::vector<at::Tensor> call_again(const Instruction& instruction, const std::vector<Value>& values,
                                   const std::vector<at::Tensor>& inputs);

}  // namespace cohort::recording
