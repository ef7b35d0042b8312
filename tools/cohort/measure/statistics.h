// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace cohort::measure {

/// Linearly interpolated between the two nearest values; `p` from 0 to 100. There must be at least one value.
double percentile(std::vector<double> values, double p);

inline double median(std::vector<double> values) {
  return percentile(std::move(values), 50);
}

/// Medians over rounds in which two were measured in turn: what disturbs the machine disturbs both figures of a round.
double median_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);
double median_difference(const std::vector<double>& minuends, const std::vector<double>& subtrahends);

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

/// There must be at least one sample.
Summary summarize(const SampleRounds& rounds);

}  // namespace cohort::measure
