// SPDX-License-Identifier: BSD-3-Clause
//
// What every rank, on every backend, is told about an abort: who called it, and why.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace cohort {

inline std::string abort_text(int rank, std::string_view reason) {
  return fmt::format("rank {} aborted the group{}{}", rank, reason.empty() ? "" : ": ", reason);
}

}  // namespace cohort
