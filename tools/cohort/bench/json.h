// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "bench/comparison.h"

namespace cohort::bench {

/// Everything that was measured, including the median of each round, as one JSON document.
std::string to_json(const std::vector<Comparison>& comparisons, int cores);

}  // namespace cohort::bench
