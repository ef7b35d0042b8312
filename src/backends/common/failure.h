// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>

#include <string>

namespace cohort {

/// Why a group is over: thrown by every operation afterwards.
struct Failure {
  ErrorKind kind = ErrorKind::backend;
  int rank = -1;      ///< at fault
  int reporter = -1;  ///< who noticed
  std::string text{};
};

/// As the class that belongs to its kind.
[[noreturn]] void throw_failure(const Failure& failure, ErrorContext context);

}  // namespace cohort
