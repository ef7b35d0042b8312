// SPDX-License-Identifier: BSD-3-Clause
//
// Where the time of a captured step's replays went: for `cohort trace` of a recorded step
// (cohort/torch/recorded_step.h).
#pragma once

#include <cohort/torch/recorded_step.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cohort::trace {

/// In nanoseconds, of the typical replay, on the thread that replays.
struct StepTimes {
  std::int64_t all = 0;
  std::int64_t computing = 0;
  std::int64_t issuing = 0;        ///< asynchronous collectives, until they are under way
  std::int64_t communicating = 0;  ///< in blocking collectives
  std::int64_t waiting = 0;        ///< for asynchronous ones
  std::int64_t host = 0;           ///< in functions of the host
  /// Of asynchronous collectives together, from their issue to their completion, as far as that is known.
  std::int64_t in_flight = 0;

  /// Communication that computing does not hide.
  std::int64_t exposed() const { return communicating + waiting; }
};

/// Throws a ValueError if no replay was measured.
StepTimes times_of(const RecordedStep& step);

/// A table for people: shares, the operators that take most, the slowest nodes and all collectives.
std::string step_report(const RecordedStep& step, std::size_t longest_list);
std::string step_json(const RecordedStep& step);

/// All measured replays in the Trace Event Format: what the thread did, and a track for each group's asynchronous
/// collectives.
std::string step_chrome_trace(const RecordedStep& step);

}  // namespace cohort::trace
