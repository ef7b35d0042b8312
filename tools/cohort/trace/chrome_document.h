// SPDX-License-Identifier: BSD-3-Clause
//
// Timelines in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cohort::trace {

/// Times are in nanoseconds, in any origin.
struct ChromeEvent {
  std::string name{};
  std::string category{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
  nlohmann::json arguments{};
};

/// Events of one process that belong together. Those that overlap go to further tracks of the same name.
struct ChromeTrack {
  int process = 0;
  std::string name{};
  std::vector<ChromeEvent> events{};
};

struct ChromeProcess {
  int number = 0;  ///< processes are shown in this order
  std::string name{};
};

/// `origin` is the time that is shown as 0.
std::string chrome_document(const std::vector<ChromeProcess>& processes, std::vector<ChromeTrack> tracks,
                            std::int64_t origin);

}  // namespace cohort::trace
