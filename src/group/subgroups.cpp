// SPDX-License-Identifier: BSD-3-Clause
//
// Groups made from groups: split and merge. shrink.cpp and grow.cpp have the others.
#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "group/factories.h"
#include "group/group_ids.h"
#include "group/process_group_state.h"

namespace cohort {

namespace {

/// Gives the child a handle of its own, so that calls that wait on it do not delay calls on the parent's handle. If the
/// store cannot be reached any more because its host is dead, the child gets the parent's handle, which throws when it
/// is used.
StorePtr child_store(const StorePtr& parent, const std::string& prefix) {
  if (parent == nullptr) return nullptr;
  StorePtr handle = parent;
  try {
    handle = parent->clone();
  } catch (const DistributedError&) {
    handle = parent;
  }
  return std::make_shared<PrefixStore>(prefix, std::move(handle));
}

/// A part of a group can be shrunk; it is the whole group that newcomers join.
std::shared_ptr<const GroupRecipe> without_job(const std::shared_ptr<const GroupRecipe>& recipe) {
  if (recipe == nullptr) return nullptr;
  auto part = std::make_shared<GroupRecipe>(*recipe);
  part->job = nullptr;
  return part;
}

}  // namespace

ProcessGroupPtr ProcessGroup::split_group(std::vector<int> ranks, const SplitOptions& options) {
  const auto refuse = [&](const std::string& why) -> void {
    throw ValueError(fmt::format("split_group: {}", why), {.group = id(), .op = "split_group"});
  };
  if (ranks.empty()) refuse("no ranks given");
  std::sort(ranks.begin(), ranks.end());
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) refuse("a rank is given twice");
  if (ranks.front() < 0 || ranks.back() >= size_) {
    refuse(fmt::format("[{}]: ranks of this group are 0 to {}", fmt::join(ranks, ", "), size_ - 1));
  }
  const auto timeout = options.timeout.duration_or(this->timeout());

  struct Child {
    BackendPtr parent;
    BackendPtr backend;
  };
  std::vector<Child> children;
  int number = 0;
  const auto backends = state_->distinct_backends();
  state_->run_in_turn(OpType::coalesced, timeout, [&](Backend& /*backend*/, Call& call) {
    number = state_->splits++;
    for (const auto& backend : backends) {
      const BackendSplit split{.ranks = ranks, .timeout = timeout, .id = fmt::format("{}/{}", id(), number)};
      children.push_back({backend, backend->split(split, call.deadline())});
    }
  });
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;

  const auto name = options.name.value_or(fmt::format("{}:split:[{}]", group_name(), fmt::join(ranks, ", ")));
  auto group = std::make_shared<ProcessGroup>(child_store(store(), fmt::format("{}/{}", name, number)),
                                              static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()),
                                              timeout, fmt::format("{}/{}", id(), number));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    group->state_->global_ranks[i] = global_ranks()[static_cast<std::size_t>(ranks[i])];
  }
  group->set_group_name(name);
  group->set_group_desc(options.description.value_or(fmt::format("{}:split:{}", group_desc(), number)));
  GroupAccess::set_recipe(*group, without_job(state_->recipe));
  const auto default_type = state_->default_device_type();
  for (const auto type : device_types()) {
    const auto parent = backend(Device(type));
    const auto it = std::find_if(children.begin(), children.end(), [&](const Child& c) { return c.parent == parent; });
    group->add_backend(type, it->backend);
  }
  if (default_type) group->set_default_backend(*default_type);
  remember_group(group->id(), group);
  return group;
}

ProcessGroupPtr ProcessGroup::merge_remote_group(const StorePtr& store, int size, const MergeOptions& options) {
  const ErrorContext context{.group = id(), .op = "merge_remote_group"};
  if (store == nullptr) throw ValueError("merge_remote_group: the store is null", context);
  if (size < 1) throw ValueError(fmt::format("merge_remote_group: size {}", size), context);
  state_->check_process("merge_remote_group");
  const auto timeout = options.timeout.duration_or(store->timeout());
  const StoreTimeoutGuard guard(*store, timeout);  // factories take their timeout from the store
  const auto rank = static_cast<int>(store->add("mergeGroupRank", 1)) - 1;
  if (rank >= size) {
    throw ValueError(
        fmt::format("merge_remote_group: {} processes joined a group of {}; a store serves one merge", rank + 1, size),
        context);
  }
  const auto name = options.name.value_or(group_name() + ":merge");
  const auto device = bound_device().value_or(Device(state_->default_device_type().value_or(DeviceType::cpu)));
  auto recipe = std::make_shared<GroupRecipe>(recipe_for("merge_remote_group", this->name(), timeout, device, {}));
  auto group = recipe->make(std::make_shared<PrefixStore>(name, store), rank, size, Deadline::after(timeout));
  GroupAccess::set_recipe(*group, std::move(recipe));
  group->set_group_name(name);
  group->set_group_desc(options.description.value_or(group_desc() + ":merge"));
  remember_group(group->id(), group);
  return group;
}

}  // namespace cohort
