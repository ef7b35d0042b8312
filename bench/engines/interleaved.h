// SPDX-License-Identifier: BSD-3-Clause
//
// The same call made in two ways, in alternating rounds of one run: times on a shared machine mean something only
// beside each other.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

namespace cohort::bench {

inline double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/// Microseconds, medians over the rounds.
struct Interleaved {
  double first = 0;
  double second = 0;
  double ratio = 0;       ///< of second to first, round by round
  double difference = 0;  ///< likewise
};

/// `time(which, repeats)` is what one call takes in the first (0) or second (1) way, repeated so often. About a
/// millisecond a round, short enough to lie between the interruptions of a busy machine.
/// `agree` has all who measure repeat equally often, where several do.
inline Interleaved interleave(
    const std::function<double(int which, int repeats)>& time, int rounds,
    const std::function<int(int repeats)>& agree = [](int repeats) { return repeats; }) {
  time(0, 3);
  const double once = std::max(time(0, 5), 0.01);
  const int repeats = agree(std::clamp(static_cast<int>(1000 / once), 1, 2000));
  time(1, repeats);
  std::vector<double> first;
  std::vector<double> second;
  std::vector<double> ratios;
  std::vector<double> differences;
  for (int round = 0; round < rounds; ++round) {
    const bool is_swapped = round % 2 == 1;
    double a = is_swapped ? 0 : time(0, repeats);
    const double b = time(1, repeats);
    if (is_swapped) a = time(0, repeats);
    first.push_back(a);
    second.push_back(b);
    ratios.push_back(b / a);
    differences.push_back(b - a);
  }
  return {.first = median(first), .second = median(second), .ratio = median(ratios), .difference = median(differences)};
}

}  // namespace cohort::bench
