// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace cohort {

/// What happened, without the stack that c10 appends.
inline std::string text_of(const std::exception& error) {
  const auto* const c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
}

}  // namespace cohort
