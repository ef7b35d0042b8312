// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "trace/reader.h"

namespace cohort::trace {

/// The Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each rank, a track
/// for each group (and further ones for operations that overlap), an event for each operation from its start to its
/// end. What has not ended lasts until the last time in all dumps. Times count from the first one; ranks on one host
/// share a clock.
std::string chrome_trace(const std::vector<TraceDump>& dumps);

}  // namespace cohort::trace
