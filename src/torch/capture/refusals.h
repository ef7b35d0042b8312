// SPDX-License-Identifier: BSD-3-Clause
//
// The operators that a replay cannot repeat: those whose result has a size that depends on the elements of a tensor,
// those that give elements to the host, and those that change what a tensor is.
//
//   if (const auto* refusal = refusal_of(op, *stack)) throw error_of(*refusal, call_text(op, *stack));
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <cohort/torch/capture_error.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cohort::recording {

struct Refusal {
  CaptureRefusal reason;
  std::string_view explanation;
  std::span<const std::string_view> hints;
};

struct RefusedOperator {
  std::string_view name;                       ///< "aten::nonzero"
  std::optional<std::string_view> overload{};  ///< nullopt for all of them
  const Refusal* refusal = nullptr;
  /// Whether these arguments are refused; null if all are.
  bool (*applies)(std::span<const c10::IValue> arguments) = nullptr;
  /// It reads elements through a pointer and is taken apart above the recorder, which sees the parts alone.
  bool is_hidden = false;
  bool is_newer = false;  ///< than the oldest libtorch that we build with
};

/// The table, by which tests check that the names are right.
std::span<const RefusedOperator> refused_operators();

/// Null for nearly all operators, for which it is one look-up by address.
const Refusal* refusal_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// "aten::index.Tensor(f32[8, 4], [bool[8]])"
std::string call_text(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

CaptureError error_of(const Refusal& refusal, std::string context);

}  // namespace cohort::recording
