// SPDX-License-Identifier: BSD-3-Clause
#include "measure/statistics.h"

#include <cohort/error.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace cohort::measure {

namespace {

template <class Function>
double median_of(Function function, const std::vector<double>& first, const std::vector<double>& second) {
  std::vector<double> values(std::min(first.size(), second.size()));
  std::transform(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(values.size()), second.begin(),
                 values.begin(), function);
  return median(std::move(values));
}

}  // namespace

double percentile(std::vector<double> values, double p) {
  if (values.empty()) throw AssertionError("there are no values to take a percentile of");
  std::sort(values.begin(), values.end());
  const double place = std::clamp(p, 0.0, 100.0) / 100 * static_cast<double>(values.size() - 1);
  const auto lower = static_cast<std::size_t>(place);
  const auto upper = std::min(lower + 1, values.size() - 1);
  return std::lerp(values[lower], values[upper], place - static_cast<double>(lower));
}

double median_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  return median_of(std::divides<>(), numerators, denominators);
}

double median_difference(const std::vector<double>& minuends, const std::vector<double>& subtrahends) {
  return median_of(std::minus<>(), minuends, subtrahends);
}

std::vector<double> SampleRounds::medians() const {
  std::vector<double> result;
  for (const auto& round : samples) result.push_back(median(round));
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
          .p50 = median(rounds.medians()),
          .p99 = percentile(all, 99),
          .min = *std::min_element(all.begin(), all.end()),
          .samples = all.size()};
}

}  // namespace cohort::measure
