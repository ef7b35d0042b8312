// SPDX-License-Identifier: BSD-3-Clause
//
// A scope in which a function sees the operations that this thread issues on any group, each with its Work:
//
//   std::vector<cohort::Work> issued;
//   {
//     const cohort::IssueObserver scope([&](const cohort::Issue& issue) { issued.push_back(issue.work); });
//     compute();                                                   // starts operations on several groups
//   }
//   for (const auto& work : issued) work.wait();
//
// Scopes nest; the innermost one alone is called. issue_again() performs an operation that was seen once more, as the
// replay of a recorded training step does.
#pragma once

#include <cohort/device.h>
#include <cohort/export.h>
#include <cohort/operation.h>
#include <cohort/timeout.h>
#include <cohort/work.h>

#include <functional>
#include <optional>
#include <string_view>

namespace cohort {

class ProcessGroup;

struct IssueOptions {
  bool async_op = false;
  Timeout timeout{};
  std::optional<DeviceType> device{};  ///< of the memory; nullopt: of the group's default backend
  void* stream = nullptr;              ///< for device memory
};

/// What an observer sees. The operation and its buffers are valid during the call.
struct Issue {
  ProcessGroup& group;
  const Operation& op;
  const IssueOptions& options;
  const Work& work;
  /// The function whose result is not in memory of the caller ("all_gather_bytes", "split_group"): the operation has a
  /// type alone, and issue_again() cannot perform it. Empty for all others.
  std::string_view host_function{};
};

/// Performs the operation as if the function for its type had been called with this memory. The operation is one that
/// an observer has seen, perhaps with other memory of the same sizes.
COHORT_API Work issue_again(ProcessGroup& group, const Operation& op, const IssueOptions& options);

class COHORT_API IssueObserver {
 public:
  /// Called when the operation has been issued, before its Work is returned; a blocking one has ended by then. What it
  /// throws, the call that issued throws; the operation goes on.
  using Function = std::function<void(const Issue&)>;

  /// Called when this thread has waited for an asynchronous operation, with success; Work::is_same_operation() tells
  /// for which. Work::future() and Work::then() wait as well then.
  using WaitFunction = std::function<void(const Work&)>;

  /// An empty function: nothing is called, as outside of all scopes.
  explicit IssueObserver(Function function, WaitFunction wait_function = {});
  ~IssueObserver();
  IssueObserver(const IssueObserver&) = delete;
  IssueObserver& operator=(const IssueObserver&) = delete;

 private:
  friend struct IssueNotifier;
  Function function_;
  WaitFunction wait_function_;
  const IssueObserver* outer_;
};

}  // namespace cohort
