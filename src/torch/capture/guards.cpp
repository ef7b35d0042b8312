// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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
      const auto& gradient = gradient_of(parameter.tensor);
      parameters_.push_back({.tensor = TensorGuard(parameter, metadata_), .gradient = &metadata_.of(gradient)});
      gradient_memory_.push_back(memory_of(gradient));
    }
  }
}

void Guards::add_group(const ProcessGroupPtr& group) {
  const auto is_it = [&](const Group& each) { return each.group.lock() == group; };
  if (std::none_of(groups_.begin(), groups_.end(), is_it)) groups_.push_back({.group = group, .id = group->id()});
}

std::vector<WatchedTensor> Guards::parameters() const {
  std::vector<WatchedTensor> all;
  all.reserve(parameters_.size());
  for (const auto& each : parameters_) all.push_back({.name = each.tensor.name(), .tensor = each.tensor.tensor()});
  return all;
}

void Guards::add_memory(const Program& program) {
  const auto are_shared = lie_in_shared_memory(program);
  arguments_.add_memory(program, are_shared);
  for (std::size_t i = 0; i < gradient_memory_.size(); ++i) {
    const auto& id = program.gradients[i];
    if (!id || !are_shared[*id]) gradient_memory_[i] = nullptr;
    if (gradient_memory_[i] != nullptr) compares_gradient_memory_ = true;
  }
  for (const auto& each : program.values) {
    if (!each.is_of_recorder || each.constant.numel() == 0) continue;
    const auto* const begin = static_cast<const std::byte*>(each.constant.data_ptr());
    group_memory_.emplace_back(begin, begin + each.constant.nbytes());
    compares_gradient_memory_ = true;
  }
  std::sort(group_memory_.begin(), group_memory_.end());
}

bool Guards::is_in_group_memory(const void* memory) const {
  const auto* const at = static_cast<const std::byte*>(memory);
  const auto next = std::upper_bound(group_memory_.begin(), group_memory_.end(), at,
                                     [](const std::byte* it, const auto& range) { return it < range.first; });
  return next != group_memory_.begin() && at < std::prev(next)->second;
}

std::optional<std::string> Guards::gradient_memory_failure() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto* const now = memory_of(gradient_of(parameters_[i].tensor.tensor()));
    const auto* const then = gradient_memory_[i];
    const auto& name = parameters_[i].tensor.name();
    if (then != nullptr && now != then) {
      return fmt::format("gradient of {} was in memory that the step uses by itself as well (a bucket), and is not",
                         name);
    }
    if (then == nullptr && now != nullptr && is_in_group_memory(now)) {
      return fmt::format("gradient of {} is in memory that the step uses by itself as well (a bucket), and was not",
                         name);
    }
  }
  return std::nullopt;
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
  return compares_gradient_memory_ ? gradient_memory_failure() : std::nullopt;
}

}  // namespace cohort::recording
