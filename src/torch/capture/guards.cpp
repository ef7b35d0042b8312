// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/guards.h"

#include <cohort/current_group.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

namespace cohort::recording {

Guards::GroupSettings::GroupSettings(const ProcessGroup& group)
    : timeout(group.timeout()),
      name(group.group_name()),
      description(group.group_desc()),
      backend(group.name()),
      device(group.bound_device()) {}

std::optional<std::string> Guards::GroupSettings::change(const GroupSettings& now) const {
  if (timeout != now.timeout) {
    return fmt::format("its timeout was {} ms and is {} ms", timeout.count(), now.timeout.count());
  }
  const auto text = [](std::string_view what, const std::string& was, const std::string& is) {
    return fmt::format("its {} was \"{}\" and is \"{}\"", what, was, is);
  };
  if (name != now.name) return text("name", name, now.name);
  if (description != now.description) return text("description", description, now.description);
  if (backend != now.backend) return text("default backend", backend, now.backend);
  const auto name_of = [](const std::optional<Device>& each) { return each ? to_string(*each) : "none"; };
  if (device != now.device) return text("bound device", name_of(device), name_of(now.device));
  return std::nullopt;
}

Guards::Guards(const detail::CapturedCall& call, const WatchList& watch) : arguments_(call) {
  if (const auto current = current_process_group()) add_group(current, false);
  for (const auto& constant : call.constants) {
    for (const auto& each : constant.groups) {
      if (each != nullptr) {
        add_group(std::const_pointer_cast<ProcessGroup>(std::static_pointer_cast<const ProcessGroup>(each)), false);
      }
    }
  }
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& each : watch) {
    watched_.push_back(each.snapshot());
    for (const auto& parameter : watched_.back()->parameters()) {
      if (!seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
      const auto& gradient = AutogradView(parameter.tensor).gradient();
      parameters_.push_back({.tensor = TensorGuard(parameter, metadata_),
                             .gradient = &metadata_.of(gradient),
                             .autograd = parameter.tensor.unsafeGetTensorImpl()->autograd_meta()});
      gradient_memory_.push_back(memory_of(gradient));
    }
  }
}

void Guards::add_group(const ProcessGroupPtr& group) {
  add_group(group, true);
}

void Guards::add_group(const ProcessGroupPtr& group, bool has_collectives) {
  const auto is_it = [&](const Group& each) { return each.group.lock() == group; };
  const auto known = std::find_if(groups_.begin(), groups_.end(), is_it);
  if (known != groups_.end()) {
    known->has_collectives = known->has_collectives || has_collectives;
    return;
  }
  groups_.push_back(
      {.group = group, .id = group->id(), .settings = GroupSettings(*group), .has_collectives = has_collectives});
}

std::vector<WatchedTensor> Guards::parameters() const {
  std::vector<WatchedTensor> all;
  all.reserve(parameters_.size());
  for (const auto& each : parameters_) all.push_back({.name = each.tensor.name(), .tensor = each.tensor.tensor()});
  return all;
}

void Guards::add_memory(const Program& program) {
  const auto is_used = used_values(program);
  const auto are_shared = lie_in_shared_memory(program, is_used);
  arguments_.add_memory(program, are_shared);
  for (std::size_t i = 0; i < gradient_memory_.size(); ++i) {
    const auto& id = program.gradients[i];
    if (id && !is_used[*id]) parameters_[i].gradient = nullptr;
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

std::optional<std::string> Guards::gradient_memory_failure(std::size_t i, const at::Tensor& gradient) const {
  const auto* const now = memory_of(gradient);
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
  return std::nullopt;
}

/// The tensors of a model are all over the memory, and each is looked at for some nanoseconds: waiting for memory is
/// most of the time unless what comes later is asked for early.
void Guards::prefetch_behind(std::size_t i) const {
  constexpr std::size_t far = 8;   // what the guard knows the address of
  constexpr std::size_t near = 4;  // the gradient, whose address is there by now
  constexpr std::size_t line = 64;
  const auto prefetch = [](const void* object, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += line) __builtin_prefetch(static_cast<const std::byte*>(object) + at);
  };
  if (i + far < parameters_.size()) {
    prefetch(parameters_[i + far].tensor.tensor().unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
    prefetch(parameters_[i + far].autograd, sizeof(torch::autograd::AutogradMeta));
  }
  if (i + near < parameters_.size() && parameters_[i + near].gradient != nullptr) {
    const auto& gradient = AutogradView(parameters_[i + near].tensor.tensor()).gradient();
    prefetch(gradient.unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
  }
}

std::optional<std::string> Guards::failure(const detail::CapturedCall& call) const {
  for (const auto& each : groups_) {
    const auto group = each.group.lock();
    if (group == nullptr && !each.has_collectives) continue;  // another one is an argument or the current group now
    if (group == nullptr) return fmt::format("group {} does not exist any more", each.id);
    if (const auto reason = group->why_closed(); each.has_collectives && !reason.empty()) {
      return fmt::format("group {}: {}", each.id, reason);
    }
    if (const auto text = each.settings.change(GroupSettings(*group))) {
      return fmt::format("group {}: {}", each.id, *text);
    }
  }
  if (auto text = modes_.change()) return text;
  if (auto text = arguments_.failure(call)) return text;
  for (const auto& each : watched_) {
    if (auto text = each->change()) return text;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    prefetch_behind(i);
    const auto& each = parameters_[i];
    const AutogradView autograd(each.tensor.tensor());
    if (!each.tensor.holds(autograd)) return each.tensor.failure();
    if (each.gradient == nullptr) continue;
    const auto& gradient = autograd.gradient();
    if (!each.gradient->fits(*gradient.unsafeGetTensorImpl(), AutogradView(gradient).requires_grad())) {
      return each.gradient->failure("gradient of " + each.tensor.name(), gradient);
    }
    if (!compares_gradient_memory_) continue;
    if (auto text = gradient_memory_failure(i, gradient)) return text;
  }
  return std::nullopt;
}

}  // namespace cohort::recording
