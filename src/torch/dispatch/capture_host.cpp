// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/capture_host.h>

#include <utility>

#include "torch/dispatch/step_observer.h"

namespace cohort {

namespace {
thread_local const HostArgument* innermost_argument = nullptr;
}

bool is_capturing() noexcept {
  return StepObserver::active() != nullptr;
}

void on_host(const std::function<void()>& function) {
  function();
  if (auto* const observer = StepObserver::active()) observer->add_host_action(function);
}

HostArgument::HostArgument(std::string name, std::function<c10::Scalar()> function)
    : name_(std::move(name)),
      function_(std::move(function)),
      value_(function_()),
      outer_(std::exchange(innermost_argument, this)) {}

HostArgument::~HostArgument() {
  innermost_argument = outer_;
}

const HostArgument* HostArgument::innermost() noexcept {
  return innermost_argument;
}

bool HostArgument::is_given(std::string_view name) noexcept {
  const auto* scope = innermost_argument;
  while (scope != nullptr && scope->name_ != name) scope = scope->outer_;
  return scope != nullptr;
}

}  // namespace cohort
