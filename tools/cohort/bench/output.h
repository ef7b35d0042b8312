// SPDX-License-Identifier: BSD-3-Clause
//
// Results: nccl-tests' table with p50 and p99 behind it, comma-separated values, JSON, and a picture.
#pragma once

#include <string>
#include <vector>

#include "bench/comparison.h"

namespace cohort::bench {

/// GB/s (1e9): the array's bytes over the time, and that times the operation's bus factor.
struct Bandwidth {
  double algorithm = 0;
  double bus = 0;
};
Bandwidth bandwidth(const Comparison& comparison, double microseconds);

/// Comment lines above the rows. `shows_backend`: there are several contestants.
std::string table_header(bool shows_backend);
/// A line for each contestant.
std::string table_rows(const Comparison& comparison, bool shows_backend);
/// Comment lines below: wrong values, average bandwidths, and what could not be measured and why.
std::string table_footer(const std::vector<Comparison>& comparisons);

/// Elements that were wrong, of all of it.
std::uint64_t count_wrong(const std::vector<Comparison>& comparisons);

std::string csv_header();
std::string csv_rows(const Comparison& comparison);
/// Everything that was measured, including the median of each round, as one JSON document.
std::string to_json(const std::vector<Comparison>& comparisons, int cores);

/// A picture (SVG): for each operation the time and the bus bandwidth over the size, both axes logarithmic, a line for
/// each contestant.
std::string to_svg(const std::vector<Comparison>& comparisons);

}  // namespace cohort::bench
