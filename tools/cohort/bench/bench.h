// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "bench/flags.h"

namespace cohort::bench {

/// Measures and prints. Returns the exit code: 1 where results were wrong or no backend of Cohort could be measured.
int run_bench(const BenchFlags& flags);

}  // namespace cohort::bench
