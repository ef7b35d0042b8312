// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/export.h>
#include <cohort/issue_observer.h>

namespace cohort {

/// What is called on threads that have no observer of their own, for those that work on behalf of another thread:
/// autograd computes gradients on CUDA with threads of its engine, to which libtorch carries its own thread-local state
/// and nobody else's. The first function finds out by that state whether the thread is one of them; the others are
/// called if so.
struct OtherThreads {
  bool (*are_observed)() noexcept;
  void (*issued)(const Issue& issue);
  void (*waited)(const Work& work);
};
/// Once, for the whole process; costs other threads the first call from then on.
COHORT_API void observe_other_threads(const OtherThreads& functions) noexcept;

struct IssueNotifier {
  /// Calls this thread's innermost observer, if there is one.
  static void notify(const Issue& issue);
  static bool is_observed() noexcept;
  /// Likewise, for functions whose result is for the host.
  static void notify_for_host(ProcessGroup& group, OpType type, std::string_view function);
  /// Likewise, for the end of a wait.
  static void notify_wait(const Work& work);
  static bool are_waits_observed() noexcept;
};

}  // namespace cohort
