// SPDX-License-Identifier: BSD-3-Clause
//
// Where one algorithm takes over from another, and how large pieces are: measured, see docs/performance.md.
#pragma once

#include <algorithm>
#include <cstddef>

#include "backends/shm/board.h"

namespace cohort::shm {

/// A reduction whose data goes with the posts: every rank reads everything, so what it reads grows with the ranks.
inline bool is_small_reduction(std::size_t bytes, int ranks) {
  return bytes <= post_bytes && bytes * static_cast<std::size_t>(ranks - 1) <= 32 * 1024;
}

/// One rank's part of an all-reduce chunk: large enough that flags do not count, small enough that what a rank has just
/// copied in is still in its cache when others read it.
inline std::size_t reduce_chunk(std::size_t bytes, int ranks) {
  const std::size_t most = std::min<std::size_t>(stage_bytes, std::size_t{64 * 1024} * static_cast<std::size_t>(ranks));
  return std::clamp<std::size_t>((bytes / 4 + 4095) / 4096 * 4096, 4096 * static_cast<std::size_t>(ranks), most);
}

/// A chunk of an exchange, and its part for one rank where each gets its own.
inline std::size_t exchange_chunk(std::size_t bytes) {
  return std::clamp<std::size_t>((bytes / 4 + 4095) / 4096 * 4096, 16 * 1024, 128 * 1024);
}

}  // namespace cohort::shm
