// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/reduce_op.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace cohort::functional {

/// In upper or lower case; throws ValueError for unknown names.
inline ReduceOp reduction_named(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return parse_reduce_op(lower);
}

}  // namespace cohort::functional
