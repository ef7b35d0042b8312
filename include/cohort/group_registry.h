// SPDX-License-Identifier: BSD-3-Clause
//
// Names for groups, for code that can hold a name but not an object (operators, graphs). The registry does not keep
// groups alive.
//
//   cohort::register_group("dp", pg);
//   cohort::resolve_group("dp")->all_reduce(x);
//   cohort::resolve_group(pg->id());                        // groups can also be found by id, without registering
//
// If the ranks are threads of one process, each rank needs names of its own: a GroupRegistryScope gives a thread its
// own registry.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace cohort {

/// Throws Error if a group that is still alive has this name.
COHORT_API void register_group(std::string name, const ProcessGroupPtr& group);
/// Throws Error if the name was never registered, if the group has been destroyed, or if the name is the id of a group
/// with several ranks in this process, because the id does not say which rank is meant.
COHORT_API ProcessGroupPtr resolve_group(std::string_view name);
/// Returns whether the name was registered.
COHORT_API bool unregister_group(std::string_view name);
COHORT_API void unregister_all_groups();
/// The group of this process whose global_ranks() are these: the current group of this thread, else one that is
/// registered by name, else any. Null if there is none. Throws Error if several that are not registered have these
/// ranks, as the ranks that are threads of one process do.
COHORT_API ProcessGroupPtr find_group_of_ranks(std::span<const int> ranks);

namespace detail {
class GroupNames;
}

/// During its lifetime, this thread registers and resolves names in a registry of its own. A thread that works on
/// behalf of another one (such as autograd's) can share that registry by copying the other thread's scope.
class COHORT_API GroupRegistryScope {
 public:
  GroupRegistryScope();
  /// Shares the registry of the thread that made `other`.
  explicit GroupRegistryScope(const GroupRegistryScope& other);
  ~GroupRegistryScope();
  GroupRegistryScope& operator=(const GroupRegistryScope&) = delete;

 private:
  std::shared_ptr<detail::GroupNames> names_;
  std::shared_ptr<detail::GroupNames> before_;
};

}  // namespace cohort
