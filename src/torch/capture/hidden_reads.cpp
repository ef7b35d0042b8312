// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/hidden_reads.h"

#include <string_view>
#include <unordered_map>

namespace cohort::recording {

namespace {

thread_local HiddenReads* innermost_watch = nullptr;

using HiddenOperators = std::unordered_map<std::string_view, const RefusedOperator*>;

/// By name alone: each has one overload that reads.
HiddenOperators hidden_operators() {
  HiddenOperators found;
  for (const auto& each : refused_operators()) {
    if (each.is_hidden) found.emplace(each.name, &each);
  }
  return found;
}

}  // namespace

std::unique_ptr<at::ObserverContext> HiddenReads::look_at(const at::RecordFunction& call) {
  static const auto hidden = hidden_operators();
  auto* const watch = innermost_watch;
  if (watch == nullptr || watch->first_ != nullptr) return nullptr;
  const auto found = hidden.find(call.name());
  if (found == hidden.end()) [[likely]]
    return nullptr;
  const auto& overload = found->second->overload;
  const auto name = call.operator_name();
  if (name && (!overload || *overload == name->overload_name)) watch->first_ = found->second;
  return nullptr;
}

HiddenReads::HiddenReads()
    : outer_(innermost_watch),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&HiddenReads::look_at).scopes({at::RecordScope::FUNCTION}))) {
  innermost_watch = this;
}

HiddenReads::~HiddenReads() {
  innermost_watch = outer_;
  at::removeCallback(handle_);
}

}  // namespace cohort::recording
