// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/issue_observer.h>

namespace cohort {

struct IssueNotifier {
  /// Calls this thread's innermost observer, if there is one.
  static void notify(const Issue& issue);
  static bool is_observed() noexcept;
  /// Likewise, for functions whose result is for the host.
  static void notify_for_host(ProcessGroup& group, OpType type, std::string_view function);
  /// Likewise, for the end of a wait.
  static void notify_wait(const Work& work);
};

}  // namespace cohort
