// SPDX-License-Identifier: BSD-3-Clause
//
// Compares two recordings of one step. What a replay repeats must be the same in both: the operators, what they are
// applied to, and every number among their arguments that the host does not give anew.
#pragma once

#include <ATen/core/ivalue.h>
#include <cohort/torch/capture_error.h>

#include <optional>
#include <string>

#include "torch/capture/program.h"

namespace cohort::recording {

struct RecordingDifference {
  CaptureRefusal reason;  ///< changing_number, changing_operators or host_write
  std::string where;      ///< the operator and the argument
  std::string what;       ///< in words
};

/// Whether two constants among arguments are the same: numbers to the bit, tensors (which are no constants) by their
/// count.
bool is_same_constant(const c10::IValue& a, const c10::IValue& b);

/// Where the recordings differ first.
std::optional<RecordingDifference> difference(const Program& first, const Program& second);

/// A constant that nobody else holds any more: the host made it in the step, over memory that is gone when the step has
/// ended (from_blob), perhaps at the same address each time.
std::optional<RecordingDifference> constant_of_the_step(const Program& program);

}  // namespace cohort::recording
