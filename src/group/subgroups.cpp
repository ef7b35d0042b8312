// SPDX-License-Identifier: BSD-3-Clause
//
// Groups made from groups: split, partition and merge. shrink.cpp and grow.cpp have the others.
#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/rank_index.h"
#include "group/assembly.h"
#include "group/factories.h"
#include "group/group_ids.h"
#include "group/issue_notifier.h"
#include "group/own_part.h"
#include "group/process_group_state.h"

namespace cohort {

/// What the children of a group are called.
struct detail::ChildNames {
  bool is_partition = false;
  std::optional<std::string> name{};
  std::optional<std::string> description{};

  /// Tells the children of one group apart: the number of the split and, in a partition, the index of the part.
  std::string label(int number, std::size_t part) const {
    return is_partition ? fmt::format("{}.{}", number, part) : std::to_string(number);
  }
};

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

/// Makes a group of these ranks of another one, as the rank at `place`.
ProcessGroupPtr assemble(const GroupRecipe& recipe, const StorePtr& keys, const std::vector<int>& ranks, int place,
                         Deadline deadline, const ErrorContext& context) {
  if (recipe.backend == "fake" || ranks.size() == 1) {
    return recipe.make(keys, place, static_cast<int>(ranks.size()), deadline);  // there are no peers to wait for
  }
  Assembly assembly(keys, {.names = ranks, .place = place}, deadline);
  auto group = assembly.run(recipe);
  if (group == nullptr) {
    throw BackendError(fmt::format("{}: no group was made: {}", context.op, assembly.why()), context);
  }
  return group;
}

}  // namespace

ProcessGroupPtr ProcessGroup::divide(const std::vector<std::vector<int>>& parts, std::chrono::milliseconds timeout,
                                     const detail::ChildNames& names) {
  struct Child {
    BackendPtr parent;
    BackendPtr backend;
  };
  std::vector<Child> children;
  int number = 0;
  const auto backends = state_->distinct_backends();
  state_->run_in_turn(OpType::coalesced, timeout, [&](Backend& /*backend*/, Call& call) {
    number = state_->splits++;
    std::vector<BackendSplit> splits;
    splits.reserve(parts.size());
    for (std::size_t index = 0; index < parts.size(); ++index) {
      splits.push_back(
          {.ranks = parts[index], .timeout = timeout, .id = fmt::format("{}/{}", id(), names.label(number, index))});
    }
    for (const auto& backend : backends) {
      children.push_back({backend, names.is_partition ? backend->partition(splits, call.deadline())
                                                      : backend->split(splits.front(), call.deadline())});
    }
  });
  const auto own = find_own_part(parts, rank_);
  if (!own) return nullptr;

  const auto& ranks = parts[own->index];
  const auto label = names.label(number, own->index);
  auto group = std::make_shared<ProcessGroup>(
      child_store(store(), fmt::format("{}/{}", names.name.value_or(group_name()), label)), own->rank,
      static_cast<int>(ranks.size()), timeout, fmt::format("{}/{}", id(), label));
  GroupAccess::set_recipe(*group, without_job(state_->recipe));
  const auto default_type = state_->default_device_type();
  for (const auto type : device_types()) {
    const auto parent = backend(Device(type));
    const auto it = std::find_if(children.begin(), children.end(), [&](const Child& c) { return c.parent == parent; });
    group->add_backend(type, it->backend);
  }
  if (default_type) group->set_default_backend(*default_type);
  present(*group, ranks, names, label);
  return group;
}

ProcessGroupPtr ProcessGroup::remake(const std::vector<std::vector<int>>& parts, std::chrono::milliseconds timeout,
                                     const detail::ChildNames& names, const PartitionOptions& options) {
  const ErrorContext context{.group = id(), .op = "partition"};
  const auto deadline = Deadline::after(timeout);
  const auto device = bound_device().value_or(Device(state_->default_device_type().value_or(DeviceType::cpu)));
  const auto own_backend = state_->recipe == nullptr ? name() : state_->recipe->backend;
  auto recipe = std::make_shared<GroupRecipe>(recipe_for("partition", options.backend.value_or(own_backend), timeout,
                                                         device, options.options.value_or(Options())));
  if (store() == nullptr) throw Error("partition: the group has no store through which to make groups", context);
  state_->check_open(OpType::coalesced);
  int number = 0;
  state_->in_turn([&](std::uint64_t /*sequence*/) { number = state_->splits++; });
  const auto own = find_own_part(parts, rank_);
  if (!own) return nullptr;

  const auto& ranks = parts[own->index];
  const auto label = names.label(number, own->index);
  const auto keys = child_store(store(), fmt::format("{}/{}", names.name.value_or(group_name()), label));
  auto group = assemble(*recipe, keys, ranks, own->rank, deadline, context);
  GroupAccess::set_recipe(*group, std::move(recipe));
  present(*group, ranks, names, label);
  return group;
}

ProcessGroupPtr GroupAccess::make_of(ProcessGroup& parent, const StorePtr& keys, const std::vector<int>& ranks,
                                     const SplitOptions& options) {
  const ErrorContext context{.group = parent.id(), .op = "split_group"};
  auto& state = *parent.state_;
  const auto recipe = [&] {
    const std::lock_guard lock(state.mutex);
    return state.recipe;
  }();
  if (recipe == nullptr) {
    throw NotSupportedError("split_group: the group was not made by new_group, nor from such a group", context);
  }
  state.check_open(OpType::coalesced);
  const auto own = find_own_part(std::span(&ranks, 1), parent.rank());
  if (!own) return nullptr;
  const auto timeout = options.timeout.duration_or(parent.timeout());
  auto group = assemble(*recipe, keys, ranks, own->rank, Deadline::after(timeout), context);
  group->set_timeout(timeout);
  set_recipe(*group, without_job(recipe));
  parent.present(*group, ranks, {.name = options.name, .description = options.description}, group->id());
  return group;
}

void ProcessGroup::present(ProcessGroup& child, const std::vector<int>& ranks, const detail::ChildNames& names,
                           const std::string& label) {
  std::vector<int> global;
  global.reserve(ranks.size());
  for (const int each : ranks) global.push_back(global_ranks()[index_of(each)]);
  GroupAccess::set_global_ranks(child, std::move(global));
  const std::string_view kind = names.is_partition ? "part" : "split";
  child.set_group_name(names.name.value_or(fmt::format("{}:{}:{}", group_name(), kind, label)));
  child.set_group_desc(names.description.value_or(fmt::format("{}:{}:{}", group_desc(), kind, label)));
  remember_group(child.id(), child.shared_from_this());
}

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
  auto name = options.name.value_or(fmt::format("{}:split:[{}]", group_name(), fmt::join(ranks, ", ")));
  auto group = divide({std::move(ranks)}, options.timeout.duration_or(this->timeout()),
                      {.name = std::move(name), .description = options.description});
  IssueNotifier::notify_for_host(*this, OpType::coalesced, "split_group");
  return group;
}

ProcessGroupPtr ProcessGroup::partition(const std::vector<std::vector<int>>& parts, const PartitionOptions& options) {
  const auto refuse = [&](const std::string& why) -> void {
    throw ValueError(fmt::format("partition: {}", why), {.group = id(), .op = "partition"});
  };
  if (parts.empty()) refuse("no parts given");
  std::vector<bool> is_given(index_of(size_));
  for (const auto& part : parts) {
    if (part.empty()) refuse("a part has no ranks");
    for (const int each : part) {
      if (each < 0 || each >= size_) refuse(fmt::format("rank {}: ranks of this group are 0 to {}", each, size_ - 1));
      if (is_given[index_of(each)]) refuse(fmt::format("rank {} is given twice", each));
      is_given[index_of(each)] = true;
    }
  }
  const auto timeout = options.timeout.duration_or(this->timeout());
  const detail::ChildNames names{.is_partition = true, .name = options.name, .description = options.description};
  auto group =
      options.backend || options.options ? remake(parts, timeout, names, options) : divide(parts, timeout, names);
  IssueNotifier::notify_for_host(*this, OpType::coalesced, "partition");
  return group;
}

ProcessGroupPtr ProcessGroup::merge_remote_group(const StorePtr& store, int size, const MergeOptions& options) {
  const ErrorContext context{.group = id(), .op = "merge_remote_group"};
  if (store == nullptr) throw ValueError("merge_remote_group: the store is null", context);
  if (size < 1) throw ValueError(fmt::format("merge_remote_group: size {}", size), context);
  state_->check_process("merge_remote_group");
  IssueNotifier::notify_for_host(*this, OpType::coalesced, "merge_remote_group");
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
