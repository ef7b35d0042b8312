// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/issue_observer.h>

#include <utility>

#include "group/issue_notifier.h"

namespace cohort {

namespace {
thread_local const IssueObserver* innermost_observer = nullptr;
}

IssueObserver::IssueObserver(Function function)
    : function_(std::move(function)), outer_(std::exchange(innermost_observer, this)) {}

IssueObserver::~IssueObserver() {
  innermost_observer = outer_;
}

void IssueNotifier::notify(const Operation& op, const Work& work) {
  if (innermost_observer != nullptr && innermost_observer->function_) innermost_observer->function_(op, work);
}

}  // namespace cohort
