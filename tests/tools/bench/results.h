// SPDX-License-Identifier: BSD-3-Clause
//
// Made-up results for what prints and draws them.
#pragma once

#include "bench/comparison.h"

namespace cohort::test {

/// An all_reduce of 4 ranks in which ours takes `us` and a peer twice that.
inline bench::Comparison made_up_comparison(std::size_t bytes, double us) {
  bench::Comparison result{.command = {.operation = measure::Operation::all_reduce, .bytes = bytes},
                           .bytes = bytes,
                           .count = bytes / 4,
                           .ranks = 4};
  bench::ComparisonRow ours{.contestant = {.backend = "shm", .memory = "group"}};
  ours.out_of_place.refusal = "it works in place alone";
  ours.in_place.rounds.samples = {{us, us, us}, {us, us, us}};
  ours.in_place.is_checked = true;
  bench::ComparisonRow peer{.contestant = {.backend = "a<b&c", .memory = "ordinary", .is_peer = true}};
  peer.out_of_place.rounds.samples = {{2 * us}, {2 * us}};
  peer.in_place.failure = "lost";
  result.rows = {ours, peer};
  return result;
}

}  // namespace cohort::test
