// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

namespace cohort::bench {

/// By linear interpolation between the two nearest values; `p` from 0 to 100. Not of nothing.
double percentile(std::vector<double> values, double p);

/// The samples of several rounds, in microseconds. What disturbs the machine for a while spoils a round, not the
/// result: the figure to compare is the median of the rounds' medians.
struct SampleRounds {
  std::vector<std::vector<double>> samples{};

  bool empty() const { return samples.empty(); }
  std::vector<double> medians() const;
  std::vector<double> pooled() const;
};

struct Summary {
  double mean = 0;
  double p50 = 0;  ///< median of the rounds' medians
  double p99 = 0;  ///< of all samples
  double min = 0;
  std::size_t samples = 0;
};

/// Not of nothing.
Summary summarize(const SampleRounds& rounds);

}  // namespace cohort::bench
