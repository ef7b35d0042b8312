// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/issuing_group.h"

#include <cohort/group_registry.h>

#include <utility>

namespace cohort::functional {

namespace {

thread_local const IssuingGroup* innermost_scope = nullptr;

}  // namespace

IssuingGroup::IssuingGroup(const ProcessGroupPtr& group, IssuingOptions options) noexcept
    : group_(*group), is_blocking_(options.is_blocking), outer_(std::exchange(innermost_scope, this)) {}

IssuingGroup::~IssuingGroup() {
  innermost_scope = outer_;
}

Issuer issuer_named(std::string_view id) {
  for (const auto* scope = innermost_scope; scope != nullptr; scope = scope->outer()) {
    if (scope->group().id() == id) return {scope->group(), scope->is_blocking(), nullptr};
  }
  auto found = resolve_group(id);
  auto& group = *found;
  return {group, false, std::move(found)};
}

}  // namespace cohort::functional
