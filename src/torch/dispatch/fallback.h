// SPDX-License-Identifier: BSD-3-Clause
//
// The dispatch key of the library's own tensors (results in flight, distributed tensors), and the one fallback on it.
// Every operator that has such a tensor among its arguments arrives there, below autograd and above all kernels. A second
// fallback on the key is an error of libtorch when a library is loaded, so all roles share this one.
#pragma once

#include <c10/core/DispatchKey.h>

namespace cohort {

/// Nothing in libtorch uses it, and it is the only such key in this place. Operators without kernels of their own for it,
/// that is all operators, arrive in the fallback.
inline constexpr c10::DispatchKey wrapper_key = c10::DispatchKey::Fake;

/// Makes sure that a program linked statically contains the registration. Called where tensors with the key are made.
void require_fallback() noexcept;

}  // namespace cohort
