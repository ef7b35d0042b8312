// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/issue_observer.h>

#include <atomic>
#include <utility>

#include "group/issue_notifier.h"

namespace cohort {

namespace {
thread_local const IssueObserver* innermost_observer = nullptr;
std::atomic<const OtherThreads*> on_other_threads{nullptr};
}  // namespace

void observe_other_threads(const OtherThreads& functions) noexcept {
  on_other_threads.store(&functions, std::memory_order_release);
}

IssueObserver::IssueObserver(Function function, WaitFunction wait_function)
    : function_(std::move(function)),
      wait_function_(std::move(wait_function)),
      outer_(std::exchange(innermost_observer, this)) {}

IssueObserver::~IssueObserver() {
  innermost_observer = outer_;
}

bool IssueNotifier::is_observed() noexcept {
  if (innermost_observer != nullptr) return innermost_observer->function_ != nullptr;
  const auto* const others = on_other_threads.load(std::memory_order_acquire);
  return others != nullptr && others->are_observed();
}

bool IssueNotifier::are_waits_observed() noexcept {
  return innermost_observer != nullptr ? innermost_observer->wait_function_ != nullptr : is_observed();
}

void IssueNotifier::notify(const Issue& issue) {
  if (innermost_observer != nullptr) return innermost_observer->function_(issue);
  on_other_threads.load(std::memory_order_acquire)->issued(issue);
}

void IssueNotifier::notify_for_host(ProcessGroup& group, OpType type, std::string_view function) {
  if (is_observed()) [[unlikely]] {
    notify({.group = group, .op = {.type = type}, .options = {}, .work = {}, .host_function = function});
  }
}

void IssueNotifier::notify_wait(const Work& work) {
  if (!are_waits_observed()) [[likely]]
    return;
  if (innermost_observer != nullptr) return innermost_observer->wait_function_(work);
  on_other_threads.load(std::memory_order_acquire)->waited(work);
}

}  // namespace cohort
