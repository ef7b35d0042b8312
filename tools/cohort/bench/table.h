// SPDX-License-Identifier: BSD-3-Clause
//
// Results as text: nccl-tests' table, with p50 and p99 behind it, or comma-separated values.
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

std::string csv_header();
std::string csv_rows(const Comparison& comparison);

/// Elements that were wrong, of all of it.
std::uint64_t count_wrong(const std::vector<Comparison>& comparisons);

}  // namespace cohort::bench
