// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>

#include <fmt/format.h>

#include <cerrno>
#include <string_view>
#include <system_error>

namespace cohort::tool {

/// Throws an Error that says what was tried and why the system call that has just failed could not do it.
[[noreturn]] inline void throw_errno(std::string_view what) {
  throw Error(fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

}  // namespace cohort::tool
