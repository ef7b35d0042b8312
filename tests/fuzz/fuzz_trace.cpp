// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include "observe/chrome_trace.h"
#include "observe/trace_analysis.h"
#include "observe/trace_reader.h"

/// The whole way of `cohort trace`, with one dump of a job.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::vector dumps{cohort::observe::read_trace({reinterpret_cast<const char*>(data), size}, "trace_0")};
    static_cast<void>(cohort::observe::analyse(dumps));
    static_cast<void>(cohort::observe::chrome_trace(dumps));
  } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  return 0;
}
