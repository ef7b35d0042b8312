// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "trace/reader.h"

namespace cohort::trace {

/// Returns the dumps in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open: a process
/// for each rank, a track for each group (and further tracks for operations that overlap), and an event for each
/// operation from its start to its end. Operations that have not ended last until the latest time in all dumps. Times
/// are relative to the earliest one; ranks on one host share a clock.
std::string chrome_trace(const std::vector<TraceDump>& dumps);

}  // namespace cohort::trace
