// SPDX-License-Identifier: BSD-3-Clause
//
// Logging with format strings, for the library's own sources. Arguments are formatted only if the level is on.
#pragma once

#include <cohort/log.h>

#include <fmt/format.h>

#include <utility>

namespace cohort {

template <class... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(LogLevel::debug)) log(LogLevel::debug, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(LogLevel::info)) log(LogLevel::info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(LogLevel::warn)) log(LogLevel::warn, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace cohort
