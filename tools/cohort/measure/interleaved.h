// SPDX-License-Identifier: BSD-3-Clause
//
// Measuring several things in turn: times on a shared machine mean something only beside each other.
#pragma once

#include <cstddef>
#include <vector>

namespace cohort::measure {

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

}  // namespace cohort::measure
