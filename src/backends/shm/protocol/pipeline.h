// SPDX-License-Identifier: BSD-3-Clause
//
// How data larger than a post passes through staging buffers: in chunks, with two buffers per rank used in turn, and
// two flags per rank, `filled` and `drained`, that count chunks over the whole life of the group.
//
// Both protocols below are templates over functors, so that the same code moves memory here and is driven through its
// interleavings in tests/model.
#pragma once

#include <cstdint>

#include "backends/shm/protocol/flags.h"

namespace cohort::shm {

inline constexpr std::uint32_t stage_depth = 2;

/// The two flags of all ranks. `Board` provides filled(rank) and drained(rank).
///
/// fill(c) writes chunk c into this rank's buffer c % 2; drain(c) uses chunk c of the ranks that have filled something
/// for this rank. Both are called with c from 0 to chunks - 1. While others drain a chunk, the next one is filled.
///
/// Buffer c % 2 is written again by fill(c + 2), after all ranks have drained chunk c. There is no cycle: a rank waits
/// in fill(c + 1) for drains of c - 1, and those wait only for fills of c - 1, which precede them in every rank's
/// program.
///
/// Ranks that fill or drain nothing (`fills`, `drains`) still raise their flags, and do so at once.
template <class Board, class WaitMonitor, class Fill, class Drain>
void exchange_chunks(Board& board, int rank, int size, std::uint32_t base, std::uint32_t chunks, bool fills,
                     bool drains, WaitMonitor& monitor, Fill&& fill, Drain&& drain) {
  const auto fill_next = [&](std::uint32_t c) {
    if (c >= stage_depth) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        monitor.waits_for(peer);
        await(board.drained(peer), base + c - stage_depth + 1, monitor);
      }
    }
    fill(c);
    raise(board.filled(rank), base + c + 1);
  };
  if (!fills) raise(board.filled(rank), base + chunks);
  if (!drains) raise(board.drained(rank), base + chunks);
  if (fills && chunks > 0) fill_next(0);
  for (std::uint32_t c = 0; c < chunks; ++c) {
    if (fills && c + 1 < chunks) fill_next(c + 1);
    if (!drains) continue;
    drain(c, [&](int peer) {
      monitor.waits_for(peer);
      await(board.filled(peer), base + c + 1, monitor);
    });
    raise(board.drained(rank), base + c + 1);
  }
}

/// The all-reduce: fill(c) puts this rank's part of chunk c where the others can read it, combine(c) reduces this
/// rank's slice of chunk c over the parts of all ranks and puts the result where the others can read it, and
/// collect(c, peer) copies the slice of `peer`.
///
/// Here `filled` counts fill and `drained` counts combine, which is sufficient. Input buffer c % 2 is written again by
/// fill(c + 2), which comes after this rank's collect(c), and that has seen combine(c) of all ranks. Result buffer
/// c % 2 is written again by combine(c + 2), which has seen fill(c + 2) of all ranks, and that comes after collect(c)
/// in every rank's program.
template <class Board, class WaitMonitor, class Fill, class Combine, class Collect>
void reduce_chunks(Board& board, int rank, int size, std::uint32_t base, std::uint32_t chunks, WaitMonitor& monitor,
                   Fill&& fill, Combine&& combine, Collect&& collect) {
  const auto fill_next = [&](std::uint32_t c) {
    fill(c);
    raise(board.filled(rank), base + c + 1);
  };
  if (chunks > 0) fill_next(0);
  for (std::uint32_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks) fill_next(c + 1);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      monitor.waits_for(peer);
      await(board.filled(peer), base + c + 1, monitor);
    }
    combine(c);
    raise(board.drained(rank), base + c + 1);
    // Each rank starts with the one after it, so that they do not all read the same memory at once.
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      monitor.waits_for(peer);
      await(board.drained(peer), base + c + 1, monitor);
      collect(c, peer);
    }
  }
}

}  // namespace cohort::shm
