// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <utility>

namespace cohort {

/// What kernels take for `str`: c10::string_view before libtorch 2.6, then std::string_view.
using OperatorString = decltype(std::declval<const c10::IValue&>().toStringView());

inline std::string_view as_view(OperatorString string) {
  return {string.data(), string.size()};
}

}  // namespace cohort
