// SPDX-License-Identifier: BSD-3-Clause
//
// Names for groups, for code that can carry a name but no object (operators, graphs). The registry keeps no group
// alive.
//
//   cohort::register_group("dp", pg);
//   cohort::resolve_group("dp")->all_reduce(x);
//   cohort::resolve_group(pg->id());                        // every group can be found by its id, without registering
//
// Where ranks are threads each needs its own names: a GroupRegistryScope gives a thread a registry of its own.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

#include <memory>
#include <string>
#include <string_view>

namespace cohort {

/// A name that is taken by a group still alive is an Error.
COHORT_API void register_group(std::string name, const ProcessGroupPtr& group);
/// An Error for a name never registered, and another for a group that is gone. Where several ranks of a group live in
/// one process, an id alone does not say which is meant: that is an Error too.
COHORT_API ProcessGroupPtr resolve_group(std::string_view name);
/// Whether it was there.
COHORT_API bool unregister_group(std::string_view name);
COHORT_API void unregister_all_groups();

namespace detail {
class GroupNames;
}

/// While it lives, this thread registers and resolves in a registry of its own. A thread working on behalf of another
/// (autograd's) shares that one's: it takes the other's scope.
class COHORT_API GroupRegistryScope {
 public:
  GroupRegistryScope();
  /// The names of the thread that made `other`.
  explicit GroupRegistryScope(const GroupRegistryScope& other);
  ~GroupRegistryScope();
  GroupRegistryScope& operator=(const GroupRegistryScope&) = delete;

 private:
  std::shared_ptr<detail::GroupNames> names_;
  std::shared_ptr<detail::GroupNames> before_;
};

}  // namespace cohort
