// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/dispatch.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "torch/dispatch/composite.h"
#include "torch/dtensor/rule_table.h"

namespace cohort::dtensor {

namespace {

/// In front of the table, which takes a lock: the last operators of this thread.
const OpInfo& info_of(const c10::OperatorHandle& op) {
  struct Entry {
    const c10::OperatorName* name = nullptr;
    std::uint64_t generation = 0;
    const OpInfo* info = nullptr;
  };
  thread_local std::array<Entry, 256> cache;
  const auto* name = &op.operator_name();  // one object for each operator, for as long as it is registered
  auto& entry = cache[(reinterpret_cast<std::uintptr_t>(name) >> 4U) % cache.size()];
  auto& rules = rule_table();
  if (entry.name != name || entry.generation != rules.generation()) {
    entry = {.name = name, .generation = rules.generation(), .info = &rules.info_of(op)};
  }
  return *entry.info;
}

/// What to do instead, by the name of the operator.
std::string_view advice_without_rule(std::string_view op) {
  const auto is_about = [&](std::string_view part) { return op.find(part) != std::string_view::npos; };
  if (is_about("batch_norm")) {
    return "SyncBatchNorm normalizes a batch that is sharded: give it the local part, to_local(), and wrap its result "
           "with "
           "DTensor::from_local()";
  }
  if (is_about("attention")) {
    return "attention that is written with matmul() and softmax() works, also if the heads are sharded";
  }
  return "redistribute() and to_local() give plain ones, and register_dtensor_rule() adds a rule";
}

}  // namespace

void dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& info = info_of(op);
  if (info.rule == nullptr && is_composite(op)) return run_composite(op, stack);
  OpCall call(op, info, *stack);
  if (info.rule == nullptr) {
    call.refuse(fmt::format("the operator has no rule for distributed tensors; {}", advice_without_rule(call.name())));
  }
  if (info.rule->check != nullptr) info.rule->check(call);
  // A view of a tensor made outside inference mode shares its version counter, which tensors made inside do not have.
  std::optional<c10::InferenceMode> outside;
  if (info.returns_view && c10::InferenceMode::is_enabled() && !call.is_inference()) outside.emplace(false);
  info.rule->run(call);
  if (info.returns_view) call.mark_views_of_copies();
}

}  // namespace cohort::dtensor
