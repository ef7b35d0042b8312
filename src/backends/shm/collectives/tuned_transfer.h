// SPDX-License-Identifier: BSD-3-Clause
//
// A collective that moves ordinary memory in the way that rank 0 chooses: rank 0 asks its tuner (auto_tuner.h) and
// publishes the way beside its post, every rank moves the memory that way, and rank 0 tells the tuner how long it took.
#pragma once

#include <cstddef>
#include <optional>

#include "backends/shm/collectives/collective.h"

namespace cohort::shm {

class TunedTransfer {
 public:
  /// `piece` is the size of what one rank gets from another, as far as this rank knows before it has seen the others'
  /// posts. Where ranks publish a factor, a post has no room for the way, and nothing is tuned.
  TunedTransfer(Engine& engine, Collective& collective, AutoTuner::Pattern pattern, std::size_t piece,
                std::optional<double> factor = {})
      : engine_(engine), collective_(collective), pattern_(pattern), piece_(piece), factor_(factor) {}

  /// Posts where this rank's memory lies and, on rank 0, the way.
  void publish(bool is_reachable) {
    if (factor_) return collective_.publish(is_reachable, {.factor = *factor_});
    collective_.publish(is_reachable, {.way = decides() ? choose() : AutoTuner::otherwise});
  }

  /// Called once all posts are there. Calls `move` with the way that rank 0 has published, or with the usual way if
  /// `longest`, the longest piece that any rank moves, is too short for it to matter. `is_typical`: the time says how
  /// fast the way is, because nothing is moved otherwise.
  template <class Move>
  void run(std::size_t longest, bool is_typical, Move&& move) {
    const bool is_long = longest >= AutoTuner::smallest;
    const auto way = is_long && !factor_ ? collective_.detail_of(0).way : AutoTuner::otherwise;
    if (!decides() || !is_long || !is_typical) return move(way);
    const auto start = Deadline::Clock::now();
    move(way);
    engine_.auto_tuner().took(way, pattern_, piece_, Deadline::Clock::now() - start);
  }

 private:
  bool decides() const { return engine_.rank() == 0 && !factor_ && piece_ >= AutoTuner::smallest; }
  AutoTuner::Way choose() const {
    // A reduce cannot: only its receiver has memory for results that others could read.
    const bool can_read = pattern_ != AutoTuner::Pattern::reduce && engine_.peer_memory().reads_ordinary();
    if (can_read) return engine_.auto_tuner().next(pattern_, piece_, AutoTuner::all_ways);
    return engine_.auto_tuner().next(pattern_, piece_, AutoTuner::staged_ways);
  }

  Engine& engine_;
  Collective& collective_;
  const AutoTuner::Pattern pattern_;
  const std::size_t piece_;
  const std::optional<double> factor_;
};

}  // namespace cohort::shm
