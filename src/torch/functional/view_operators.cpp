// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/view_operators.h"

#include <string_view>
#include <unordered_set>

namespace cohort::functional {

bool is_view_operator(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string_view> names{
      "aten::_reshape_alias",   "aten::alias",     "aten::as_strided", "aten::detach",          "aten::diagonal",
      "aten::expand",           "aten::permute",   "aten::select",     "aten::slice",           "aten::split",
      "aten::split_with_sizes", "aten::squeeze",   "aten::t",          "aten::transpose",       "aten::unbind",
      "aten::unfold",           "aten::unsqueeze", "aten::view",       "aten::view_as_complex", "aten::view_as_real",
  };
  return names.contains(op.operator_name().name);
}

}  // namespace cohort::functional
