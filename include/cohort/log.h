// SPDX-License-Identifier: BSD-3-Clause
//
// Cohort logs to standard error, one line per message, with time, level and rank:
//
// ```text
//   12:00:01.250 W [rank 3] store: 10.0.0.1:29500 accepts connections but does not answer as a Cohort store
// ```
//
// COHORT_LOG sets the level (trace, debug, info, warn, error or off; default: warn). A program with its own logging
// replaces the sink:
//
//   cohort::set_log_sink([](const cohort::LogRecord& r) { std::clog << r.message << '\n'; });
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace cohort {

enum class LogLevel : std::uint8_t { trace, debug, info, warn, error, off };

COHORT_API std::string_view to_string(LogLevel level);
/// Accepts the names above in upper or lower case. Throws a ValueError that lists them otherwise.
COHORT_API LogLevel parse_log_level(std::string_view name);

struct LogRecord {
  LogLevel level;
  int rank;                  ///< -1 if the process has no rank yet
  std::string_view message;  ///< one line, without level and rank; valid only during the call
};

/// Called by one thread at a time. Exceptions that it throws are ignored, so that logging never fails the caller.
using LogSink = std::function<void(const LogRecord&)>;

/// The current level; initially the value of COHORT_LOG.
COHORT_API LogLevel log_level() noexcept;
COHORT_API void set_log_level(LogLevel level) noexcept;
/// Null restores standard error.
COHORT_API void set_log_sink(LogSink sink);
/// Sets the rank shown in messages of this thread. rendezvous() calls it. Threads on which it was not called show the
/// first rank that was set in the process.
COHORT_API void set_log_rank(int rank) noexcept;

COHORT_API void log(LogLevel level, std::string_view message);
inline bool log_enabled(LogLevel level) noexcept {
  return level >= log_level();
}

}  // namespace cohort
