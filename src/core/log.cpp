// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/log.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

#include "core/immortal.h"

namespace cohort {

namespace {

constexpr std::array<std::string_view, 6> level_names = {"trace", "debug", "info", "warn", "error", "off"};

LogLevel level_from_environment() noexcept {
  try {
    return Env::read().log_level;
  } catch (const std::exception& e) {
    static_cast<void>(std::fprintf(stderr, "cohort: %s\n", e.what()));
    return LogLevel::warn;
  }
}

/// The sink and the level are process-wide because standard error is. Never destroyed: threads may log while the
/// process exits.
struct LogState {
  std::atomic<LogLevel> level{level_from_environment()};
  std::atomic<int> first_rank{-1};
  std::mutex mutex;
  LogSink sink;
};

LogState& state() {
  static Immortal<LogState> instance;
  return *instance;
}

thread_local int thread_rank = -1;

void write_to_stderr(const LogRecord& record) {
  const auto now = std::chrono::system_clock::now();
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const char initial = static_cast<char>(std::toupper(level_names.at(static_cast<std::size_t>(record.level))[0]));
  const auto who = record.rank < 0 ? std::string() : fmt::format("[rank {}] ", record.rank);
  const auto line =
      fmt::format("{:%H:%M:%S}.{:03} {} {}{}\n", fmt::localtime(std::chrono::system_clock::to_time_t(now)), millis,
                  initial, who, record.message);
  // One write per line, so that lines of several processes on one terminal do not mix.
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
}

}  // namespace

std::string_view to_string(LogLevel level) {
  return level_names.at(static_cast<std::size_t>(level));
}

LogLevel parse_log_level(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (std::size_t i = 0; i < level_names.size(); ++i) {
    if (lower == level_names.at(i)) return static_cast<LogLevel>(i);
  }
  throw ValueError(fmt::format("unknown log level \"{}\": one of trace, debug, info, warn, error, off", name));
}

LogLevel log_level() noexcept {
  return state().level.load(std::memory_order_relaxed);
}
void set_log_level(LogLevel level) noexcept {
  state().level.store(level, std::memory_order_relaxed);
}
void set_log_sink(LogSink sink) {
  const std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
}
void set_log_rank(int rank) noexcept {
  thread_rank = rank;
  int none = -1;
  state().first_rank.compare_exchange_strong(none, rank, std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level) || level == LogLevel::off) return;
  const int rank = thread_rank >= 0 ? thread_rank : state().first_rank.load(std::memory_order_relaxed);
  const LogRecord record{level, rank, message};
  const std::lock_guard lock(state().mutex);
  try {
    state().sink ? state().sink(record) : write_to_stderr(record);
  } catch (...) {  // NOLINT(bugprone-empty-catch): a log that fails must not fail what it reports on
  }
}

}  // namespace cohort
