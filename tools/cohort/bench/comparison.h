// SPDX-License-Identifier: BSD-3-Clause
//
// Contestants measured in turn, one size of one operation at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/contestant.h"
#include "measure/command.h"
#include "measure/statistics.h"

namespace cohort::bench {

/// What came out for one contestant, in place or out of place.
struct Outcome {
  measure::SampleRounds rounds{};
  int batch = 1;
  std::uint64_t wrong = 0;
  bool is_checked = false;
  std::string refusal{};  ///< why the contestant does not support this
  std::string failure{};  ///< why there are no figures, or no more of them

  bool has_figures() const { return !rounds.empty(); }
};

struct ComparisonRow {
  ContestantName contestant{};
  Outcome out_of_place{};
  Outcome in_place{};
};

/// One size of one operation, for all contestants.
struct Comparison {
  measure::Command command{};  ///< in_place and check vary within it
  std::size_t bytes = 0;       ///< of the whole array, as it was measured
  std::size_t count = 0;       ///< elements of a block, or of the array
  int ranks = 0;
  std::vector<ComparisonRow> rows{};
};

struct ComparisonOptions {
  int rounds = 1;
  bool check = true;
  /// For operations that work both in place and out of place.
  enum class Placements : std::uint8_t { both, in_place, out_of_place };
  Placements placements = Placements::both;
  /// Peers that take more than this many times the best peer's time in the first two rounds are left out of the others;
  /// 0: all peers are measured in all rounds.
  double drop_peers_beyond = 0;
  /// Called before each measurement, with a description of it.
  std::function<void(const std::string&)> on_progress{};
};

/// Measures every contestant once in each round, in an order that changes from round to round.
Comparison compare(const std::vector<std::unique_ptr<Contestant>>& contestants, const measure::Command& command,
                   int ranks, const ComparisonOptions& options);

}  // namespace cohort::bench
