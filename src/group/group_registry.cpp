// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/group_registry.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/immortal.h"
#include "group/group_ids.h"

namespace cohort {

namespace detail {

/// Thread-safe, because a scope may be shared between threads.
class GroupNames {
 public:
  void add(std::string name, const ProcessGroupPtr& group) {
    const std::lock_guard lock(mutex_);
    auto& entry = names_[name];
    if (!entry.expired()) throw Error(fmt::format("the group name \"{}\" is taken", name));
    entry = group;
  }
  /// nullopt: never registered. Null: the group has been destroyed.
  std::optional<ProcessGroupPtr> find(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    const auto it = names_.find(name);
    if (it == names_.end()) return std::nullopt;
    return it->second.lock();
  }
  /// The first by name of those that are alive and fit; null if there is none.
  template <class Fits>
  ProcessGroupPtr find_if(const Fits& fits) const {
    std::vector<ProcessGroupPtr> living;  // released after the lock, as in find_by_id
    const std::lock_guard lock(mutex_);
    for (const auto& [name, group] : names_) {
      if (auto each = group.lock()) {
        if (fits(*each)) return each;
        living.push_back(std::move(each));
      }
    }
    return nullptr;
  }
  bool remove(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto it = names_.find(name);
    if (it == names_.end()) return false;
    names_.erase(it);
    return true;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    names_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<ProcessGroup>, std::less<>> names_;
};

}  // namespace detail

namespace {

using Names = std::shared_ptr<detail::GroupNames>;

thread_local Names own_names;

const Names& registered() {
  static Immortal<Names> of_process(std::make_shared<detail::GroupNames>());
  return own_names ? own_names : *of_process;
}

/// Process-wide and thread-safe: all existing groups by id. Ranks that are threads share an id.
struct Ids {
  std::mutex mutex;
  std::multimap<std::string, std::pair<ProcessGroup*, std::weak_ptr<ProcessGroup>>, std::less<>> groups;

  static Ids& instance() {
    static Immortal<Ids> ids;
    return *ids;
  }
};

ProcessGroupPtr find_by_id(std::string_view id) {
  // Declared before the lock so that it is destroyed after it: it may hold the last reference to a group, whose
  // destructor takes the lock.
  std::vector<ProcessGroupPtr> living;
  auto& ids = Ids::instance();
  {
    const std::lock_guard lock(ids.mutex);
    const auto [first, last] = ids.groups.equal_range(id);
    for (auto it = first; it != last; ++it) {
      if (auto group = it->second.second.lock()) living.push_back(std::move(group));
    }
  }
  if (living.size() > 1) {
    throw Error(fmt::format("several ranks of group \"{}\" live in this process: register them by name instead", id));
  }
  return living.empty() ? nullptr : living.front();
}

}  // namespace

void remember_group(const std::string& id, const ProcessGroupPtr& group) {
  auto& ids = Ids::instance();
  const std::lock_guard lock(ids.mutex);
  ids.groups.emplace(id, std::pair(group.get(), std::weak_ptr(group)));
}

void forget_group(const std::string& id, const ProcessGroup* group) {
  auto& ids = Ids::instance();
  const std::lock_guard lock(ids.mutex);
  const auto [first, last] = ids.groups.equal_range(id);
  const auto it = std::find_if(first, last, [&](const auto& entry) { return entry.second.first == group; });
  if (it != last) ids.groups.erase(it);
}

void register_group(std::string name, const ProcessGroupPtr& group) {
  if (group == nullptr) throw ValueError("register_group: the group is null");
  registered()->add(std::move(name), group);
}

ProcessGroupPtr resolve_group(std::string_view name) {
  if (const auto found = registered()->find(name)) {
    if (*found == nullptr) throw Error(fmt::format("the group registered as \"{}\" is gone", name));
    return *found;
  }
  if (auto group = find_by_id(name)) return group;
  throw Error(fmt::format("no group is registered as \"{}\"", name));
}

ProcessGroupPtr find_group_of_ranks(std::span<const int> ranks) {
  const auto fits = [&](const ProcessGroup& group) { return std::ranges::equal(group.global_ranks(), ranks); };
  if (auto own = current_process_group(); own != nullptr && fits(*own)) return own;
  if (auto named = registered()->find_if(fits)) return named;
  std::vector<ProcessGroupPtr> living;  // released after the lock, as in find_by_id
  auto& ids = Ids::instance();
  {
    const std::lock_guard lock(ids.mutex);
    for (const auto& [id, entry] : ids.groups) {
      if (auto group = entry.second.lock()) living.push_back(std::move(group));
    }
  }
  std::erase_if(living, [&](const auto& group) { return !fits(*group); });
  if (living.size() > 1) {
    throw Error(
        fmt::format("{} groups of this process have these ranks, the first of them \"{}\": make one of them the "
                    "current group (ProcessGroupGuard), or register it by name",
                    living.size(), living.front()->id()));
  }
  return living.empty() ? nullptr : living.front();
}

bool unregister_group(std::string_view name) {
  return registered()->remove(name);
}

void unregister_all_groups() {
  registered()->clear();
}

GroupRegistryScope::GroupRegistryScope()
    : names_(std::make_shared<detail::GroupNames>()), before_(std::exchange(own_names, names_)) {}

GroupRegistryScope::GroupRegistryScope(const GroupRegistryScope& other)
    : names_(other.names_), before_(std::exchange(own_names, names_)) {}

GroupRegistryScope::~GroupRegistryScope() {
  own_names = std::move(before_);
}

}  // namespace cohort
