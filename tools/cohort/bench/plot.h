// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "bench/comparison.h"

namespace cohort::bench {

/// A picture (SVG): for each operation the time and the bus bandwidth over the size, both axes logarithmic, a line for
/// each contestant.
std::string to_svg(const std::vector<Comparison>& comparisons);

}  // namespace cohort::bench
