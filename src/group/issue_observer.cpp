// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/issue_observer.h>

#include <utility>

#include "group/issue_notifier.h"

namespace cohort {

namespace {
thread_local const IssueObserver* innermost_observer = nullptr;
}

IssueObserver::IssueObserver(Function function, WaitFunction wait_function)
    : function_(std::move(function)),
      wait_function_(std::move(wait_function)),
      outer_(std::exchange(innermost_observer, this)) {}

IssueObserver::~IssueObserver() {
  innermost_observer = outer_;
}

bool IssueNotifier::is_observed() noexcept {
  return innermost_observer != nullptr && innermost_observer->function_ != nullptr;
}

void IssueNotifier::notify(const Issue& issue) {
  innermost_observer->function_(issue);
}

void IssueNotifier::notify_for_host(ProcessGroup& group, OpType type, std::string_view function) {
  if (is_observed()) [[unlikely]] {
    notify({.group = group, .op = {.type = type}, .options = {}, .work = {}, .host_function = function});
  }
}

void IssueNotifier::notify_wait(const Work& work) {
  if (innermost_observer != nullptr && innermost_observer->wait_function_ != nullptr) [[unlikely]] {
    innermost_observer->wait_function_(work);
  }
}

}  // namespace cohort
