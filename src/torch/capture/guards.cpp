// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace cohort::recording {

namespace {

/// Without at::Tensor's warning about gradients of tensors that are no leaves, which costs more than the rest.
const at::Tensor& gradient_of(const at::Tensor& parameter) {
  return static_cast<const c10::TensorImpl*>(parameter.unsafeGetTensorImpl())->grad();
}

}  // namespace

Guards::Guards(const detail::CapturedCall& call, const WatchList& watch) : arguments_(call) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& each : watch) {
    watched_.push_back(each.snapshot());
    for (const auto& parameter : watched_.back()->parameters()) {
      if (!seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
      parameters_.push_back(
          {.tensor = TensorGuard(parameter, metadata_), .gradient = &metadata_.of(gradient_of(parameter.tensor))});
    }
  }
}

void Guards::add_group(const ProcessGroupPtr& group) {
  const auto is_it = [&](const Group& each) { return each.group.lock() == group; };
  if (std::none_of(groups_.begin(), groups_.end(), is_it)) groups_.push_back({.group = group, .id = group->id()});
}

std::optional<std::string> Guards::failure(const detail::CapturedCall& call) const {
  for (const auto& each : groups_) {
    const auto group = each.group.lock();
    if (group == nullptr) return fmt::format("group {} does not exist any more", each.id);
    if (const auto reason = group->why_closed(); !reason.empty()) return fmt::format("group {}: {}", each.id, reason);
  }
  if (auto text = modes_.change()) return text;
  if (auto text = arguments_.failure(call)) return text;
  for (const auto& each : watched_) {
    if (auto text = each->change()) return text;
  }
  for (const auto& each : parameters_) {
    if (!each.tensor.holds()) return each.tensor.failure();
    const auto& gradient = gradient_of(each.tensor.tensor());
    if (!each.gradient->fits(gradient)) return each.gradient->failure("gradient of " + each.tensor.name(), gradient);
  }
  return std::nullopt;
}

}  // namespace cohort::recording
