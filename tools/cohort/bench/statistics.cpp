// SPDX-License-Identifier: BSD-3-Clause
#include "statistics.h"

#include <cohort/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cohort::bench {

double percentile(std::vector<double> values, double p) {
  if (values.empty()) throw AssertionError("a percentile of nothing");
  std::sort(values.begin(), values.end());
  const double place = std::clamp(p, 0.0, 100.0) / 100 * static_cast<double>(values.size() - 1);
  const auto lower = static_cast<std::size_t>(place);
  const auto upper = std::min(lower + 1, values.size() - 1);
  return std::lerp(values[lower], values[upper], place - static_cast<double>(lower));
}

std::vector<double> SampleRounds::medians() const {
  std::vector<double> result;
  for (const auto& round : samples) result.push_back(percentile(round, 50));
  return result;
}

std::vector<double> SampleRounds::pooled() const {
  std::vector<double> result;
  for (const auto& round : samples) result.insert(result.end(), round.begin(), round.end());
  return result;
}

Summary summarize(const SampleRounds& rounds) {
  const auto all = rounds.pooled();
  return {.mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()),
          .p50 = percentile(rounds.medians(), 50),
          .p99 = percentile(all, 99),
          .min = *std::min_element(all.begin(), all.end()),
          .samples = all.size()};
}

}  // namespace cohort::bench
