// SPDX-License-Identifier: BSD-3-Clause
//
// The current group of a thread, for code that takes its group implicitly from its caller.
//
//   cohort::ProcessGroupGuard scope(pg);                        // until the end of the scope
//   assert(cohort::current_process_group() == pg);
//
// A new thread has no current group; it does not inherit one. Guards nest, and each restores the group it replaced.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

namespace cohort {

/// The current group of this thread, or null if none is set.
COHORT_API ProcessGroupPtr current_process_group();
/// The same, but throws an Error that says how to set a group if there is none. `who` names the caller in the message.
COHORT_API ProcessGroupPtr require_current_process_group(std::string_view who);

class COHORT_API ProcessGroupGuard {
 public:
  /// With a null group there is no current group within the scope.
  explicit ProcessGroupGuard(ProcessGroupPtr group);
  ~ProcessGroupGuard();
  ProcessGroupGuard(const ProcessGroupGuard&) = delete;
  ProcessGroupGuard& operator=(const ProcessGroupGuard&) = delete;

 private:
  ProcessGroupPtr before_;
};

}  // namespace cohort
