// SPDX-License-Identifier: BSD-3-Clause
//
// Which group an operator of src/torch/functional/operators.h means. Operators name it by its id, since a graph can
// hold a string but no object. The id alone does not say which rank is meant if the ranks are threads of one process,
// and looking it up takes a lock; callers that have the group say so for the time of the call:
//
//   const IssuingGroup scope(group, {.is_blocking = true});
//   ops::all_reduce(x, "sum", group->id());
#pragma once

#include <cohort/process_group.h>

#include <string_view>

namespace cohort::functional {

struct IssuingOptions {
  /// Perform the collective on the calling thread and register no Work: the result is there when the operator returns
  /// (on the current stream, for device memory).
  bool is_blocking = false;
};

/// While it exists, operators that this thread calls with the group's id use this group. Scopes nest.
class IssuingGroup {
 public:
  explicit IssuingGroup(const ProcessGroupPtr& group, IssuingOptions options = {}) noexcept;
  ~IssuingGroup();
  IssuingGroup(const IssuingGroup&) = delete;
  IssuingGroup& operator=(const IssuingGroup&) = delete;

  ProcessGroup& group() const noexcept { return group_; }
  bool is_blocking() const noexcept { return is_blocking_; }
  const IssuingGroup* outer() const noexcept { return outer_; }

 private:
  ProcessGroup& group_;  // the caller holds it
  bool is_blocking_;
  const IssuingGroup* outer_;
};

/// The group of one call of an operator.
struct Issuer {
  ProcessGroup& group;
  bool is_blocking;
  ProcessGroupPtr held;  ///< null if a scope's caller holds the group
};

/// From the innermost scope of this thread whose group has this id; otherwise from the registry (group_registry.h),
/// which throws an Error if it has none.
Issuer issuer_named(std::string_view id);

}  // namespace cohort::functional
