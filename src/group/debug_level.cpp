// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/debug_level.h>
#include <cohort/env.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <string>

namespace cohort {

namespace {

constexpr std::array<std::string_view, 3> debug_level_names{"off", "info", "detail"};

DebugLevel from_env() {
  const auto env = Env::read();
  for (const auto* const variable : {"COHORT_DEBUG", "TORCH_DISTRIBUTED_DEBUG"}) {
    const auto text = env.text(variable);
    if (text.empty()) continue;
    try {
      return parse_debug_level(text);
    } catch (const ValueError& e) {
      throw ValueError(fmt::format("{}: {}", variable, e.message()));
    }
  }
  return DebugLevel::off;
}

/// Process-wide. Read from the environment on first use, not when the library is loaded.
std::atomic<DebugLevel>& level() {
  static std::atomic<DebugLevel> value{from_env()};
  return value;
}

}  // namespace

std::string_view to_string(DebugLevel level) {
  return debug_level_names.at(static_cast<std::size_t>(level));
}

DebugLevel parse_debug_level(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto it = std::find(debug_level_names.begin(), debug_level_names.end(), lower);
  if (it == debug_level_names.end())
    throw ValueError(fmt::format("unknown debug level \"{}\": off, info or detail", name));
  return static_cast<DebugLevel>(it - debug_level_names.begin());
}

DebugLevel debug_level() {
  return level().load(std::memory_order_relaxed);
}

void set_debug_level(DebugLevel value) {
  level().store(value, std::memory_order_relaxed);
}

void set_debug_level_from_env() {
  set_debug_level(from_env());
}

}  // namespace cohort
