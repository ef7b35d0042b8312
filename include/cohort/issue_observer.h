// SPDX-License-Identifier: BSD-3-Clause
//
// A scope in which a function sees the asynchronous operations that this thread issues on any group, each with its Work:
//
//   std::vector<cohort::Work> issued;
//   {
//     const cohort::IssueObserver scope([&](const auto&, const cohort::Work& work) { issued.push_back(work); });
//     compute();                                                   // starts operations on several groups
//   }
//   for (const auto& work : issued) work.wait();
//
// Scopes nest; the innermost one alone is called.
#pragma once

#include <cohort/export.h>
#include <cohort/operation.h>
#include <cohort/work.h>

#include <functional>

namespace cohort {

class COHORT_API IssueObserver {
 public:
  /// Called when the operation has been issued, before its Work is returned. The Operation and its buffers are valid
  /// during the call. What it throws, the call that issued throws; the operation goes on.
  using Function = std::function<void(const Operation&, const Work&)>;

  /// An empty function: nothing is called, as outside of all scopes.
  explicit IssueObserver(Function function);
  ~IssueObserver();
  IssueObserver(const IssueObserver&) = delete;
  IssueObserver& operator=(const IssueObserver&) = delete;

 private:
  friend struct IssueNotifier;
  Function function_;
  const IssueObserver* outer_;
};

}  // namespace cohort
