// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "bench/flags.h"

namespace cohort::bench {

/// Measures and prints. Exit code: 0, or 1 where results were wrong or none of ours could be measured.
int run_bench(const BenchFlags& flags);

}  // namespace cohort::bench
