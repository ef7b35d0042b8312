// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace cohort::functional {

/// Whether the operator always returns views of its first argument and never reads elements. Operators that may copy
/// (reshape, contiguous, to) have the same schema, so the operators are listed by name; one that is not listed waits.
bool is_view_operator(const c10::OperatorHandle& op);

}  // namespace cohort::functional
