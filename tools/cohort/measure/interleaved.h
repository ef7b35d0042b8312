// SPDX-License-Identifier: BSD-3-Clause
//
// Measuring several things in turn: times on a shared machine mean something only beside each other.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "measure/report.h"

namespace cohort::bench {

/// Figures of each contestant, one for each round.
using Turns = std::vector<std::vector<double>>;

/// Calls `measure(contestant)` once for each contestant in each round. The one that goes first changes from round to
/// round: a machine that slows down must not always slow down the same one.
template <class Measure>
Turns take_turns(std::size_t contestants, int rounds, Measure&& measure) {
  Turns figures(contestants);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < contestants; ++turn) {
      const auto contestant = (turn + static_cast<std::size_t>(round)) % contestants;
      figures[contestant].push_back(measure(contestant));
    }
  }
  return figures;
}

/// The same call made in two ways; microseconds of one call, medians over the rounds.
struct Interleaved {
  double first = 0;
  double second = 0;
  double ratio = 0;       ///< second / first, median of the rounds' ratios
  double difference = 0;  ///< second - first, median of the rounds' differences
};

/// `time(which, repeats)` returns what one call takes in the first (0) or second (1) way when it is repeated that
/// often. A round lasts about a millisecond, short enough to lie between the interruptions of a busy machine. Where
/// several processes measure together, `agree` makes all of them use the same number of repeats.
Interleaved interleave(
    const std::function<double(int which, int repeats)>& time, int rounds,
    const std::function<int(int repeats)>& agree = [](int repeats) { return repeats; });

/// What a backend adds to the library it is built on, with the bars for that: from 64 KiB on at most 5 %, for anything
/// smaller at most 3 us. `measured.first` is the library.
Row overhead_row(const std::string& what, std::size_t bytes, const Interleaved& measured, const std::string& library);

}  // namespace cohort::bench
