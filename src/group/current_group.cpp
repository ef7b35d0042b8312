// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/current_group.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <utility>

namespace cohort {

namespace {
thread_local ProcessGroupPtr current;
}

ProcessGroupPtr current_process_group() {
  return current;
}

ProcessGroupPtr require_current_process_group(std::string_view who) {
  if (current == nullptr) {
    throw Error(fmt::format(
        "{}: this thread has no current process group; set one with cohort::ProcessGroupGuard scope(pg)", who));
  }
  return current;
}

ProcessGroupGuard::ProcessGroupGuard(ProcessGroupPtr group) : before_(std::exchange(current, std::move(group))) {}

ProcessGroupGuard::~ProcessGroupGuard() {
  current = std::move(before_);
}

}  // namespace cohort
