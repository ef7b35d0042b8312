// SPDX-License-Identifier: BSD-3-Clause
//
// Parts of a recording in words.
#pragma once

#include <ATen/core/ivalue.h>
#include <cohort/op_type.h>

#include <fmt/format.h>

#include <sstream>
#include <string>

#include "torch/capture/program.h"

namespace cohort::recording {

/// "aten::add.Tensor", "all_reduce" for an operation on a group, "wait", "host".
inline std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

inline std::string name_of(const Instruction& instruction) {
  if (const auto* const call = instruction.as<OperatorCall>()) return name_of(call->op);
  if (const auto* const call = instruction.as<DistributedCall>()) return call->name;
  if (const auto* const call = instruction.as<CollectiveCall>()) {
    return std::string(to_string(call->collective->operation.type));
  }
  return instruction.as<CollectiveWait>() != nullptr ? "wait" : "host";
}

/// Numbers with as many digits as tell them from others.
inline std::string constant_text(const c10::IValue& constant) {
  if (constant.isDouble()) return fmt::format("{}", constant.toDouble());
  std::ostringstream text;
  text << constant;
  return text.str();
}

}  // namespace cohort::recording
