// SPDX-License-Identifier: BSD-3-Clause
//
// The one fallback on the dispatch key of the library's own tensors (results in flight, distributed tensors). Every operator
// that has such a tensor among its arguments arrives there, and every one of a thread whose work is recorded.
#pragma once

#include "torch/compat/wrapper_key.h"  // IWYU pragma: export

namespace cohort {

/// Makes sure that a program linked statically contains the registration. Called where tensors with the key are made.
void require_fallback() noexcept;

}  // namespace cohort
