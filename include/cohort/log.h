// SPDX-License-Identifier: BSD-3-Clause
//
// What Cohort has to say goes to standard error, one line each, with time, level and rank:
//
// ```text
//   12:00:01.250 W [rank 3] store: 10.0.0.1:29500 accepts connections but does not answer as a Cohort store
// ```
//
// COHORT_LOG chooses the level (trace, debug, info, warn, error, off; default warn). A program with a log of its own
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
/// A name above, in any case; else a ValueError that lists them.
COHORT_API LogLevel parse_log_level(std::string_view name);

struct LogRecord {
  LogLevel level;
  int rank;                  ///< -1 when the process has none yet
  std::string_view message;  ///< one line, without level and rank; valid during the call only
};

/// Called by one thread at a time. An exception it throws is swallowed: logging never fails the caller.
using LogSink = std::function<void(const LogRecord&)>;

/// The level in force; at first what COHORT_LOG says.
COHORT_API LogLevel log_level() noexcept;
COHORT_API void set_log_level(LogLevel level) noexcept;
/// Null brings standard error back.
COHORT_API void set_log_sink(LogSink sink);
/// The rank that lines of this thread carry. Rendezvous sets it; a thread without one uses the first the process had.
COHORT_API void set_log_rank(int rank) noexcept;

COHORT_API void log(LogLevel level, std::string_view message);
inline bool log_enabled(LogLevel level) noexcept {
  return level >= log_level();
}

}  // namespace cohort
