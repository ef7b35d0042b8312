// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>

#include <string>

namespace cohort {

/// Why a group has failed: thrown by every operation from then on.
struct Failure {
  ErrorKind kind = ErrorKind::backend;
  int rank = -1;      ///< the rank at fault
  int reporter = -1;  ///< the rank that detected it
  std::string text{};
};

/// Throws the error class that belongs to the failure's kind.
[[noreturn]] void throw_failure(const Failure& failure, ErrorContext context);

}  // namespace cohort
