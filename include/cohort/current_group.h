// SPDX-License-Identifier: BSD-3-Clause
//
// The current group of a thread, for code that takes its group from the surroundings.
//
//   cohort::ProcessGroupGuard scope(pg);                        // until the end of the scope
//   assert(cohort::current_process_group() == pg);
//
// Threads start with none and inherit nothing. Guards nest; each restores what it found.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

namespace cohort {

/// Null when none is set on this thread.
COHORT_API ProcessGroupPtr current_process_group();
/// The same, but none is an Error that says how to set one; `who` needs it.
COHORT_API ProcessGroupPtr require_current_process_group(std::string_view who);

class COHORT_API ProcessGroupGuard {
 public:
  /// May be null: no current group within the scope.
  explicit ProcessGroupGuard(ProcessGroupPtr group);
  ~ProcessGroupGuard();
  ProcessGroupGuard(const ProcessGroupGuard&) = delete;
  ProcessGroupGuard& operator=(const ProcessGroupGuard&) = delete;

 private:
  ProcessGroupPtr before_;
};

}  // namespace cohort
