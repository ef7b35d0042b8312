// SPDX-License-Identifier: BSD-3-Clause
//
// A text that claims to be a recorded step: it is refused, or writing it gives the same step again.
#include <cohort/error.h>
#include <cohort/torch/recorded_step.h>

#include <cstdint>
#include <cstdlib>

#include "accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto step = cohort::read_step({reinterpret_cast<const char*>(data), size});
    if (cohort::read_step(cohort::serialize(step)) != step) std::abort();
    const auto durations = cohort::typical_durations(step.timeline);
    if (!durations.empty() && durations.size() != cohort::all_nodes(step.graph).size()) std::abort();
    cohort::fuzz::accepted = true;
  } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  return 0;
}
