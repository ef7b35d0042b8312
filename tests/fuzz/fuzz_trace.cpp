// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include "accepted.h"
#include "trace/analysis.h"
#include "trace/chrome_trace.h"
#include "trace/reader.h"

/// The whole way of `cohort trace`, with one dump of a job.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::vector dumps{cohort::trace::read_trace({reinterpret_cast<const char*>(data), size}, "trace_0")};
    static_cast<void>(cohort::trace::analyse(dumps));
    static_cast<void>(cohort::trace::chrome_trace(dumps));
    cohort::fuzz::accepted = true;
  } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  return 0;
}
