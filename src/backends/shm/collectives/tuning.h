// SPDX-License-Identifier: BSD-3-Clause
//
// The sizes at which one algorithm takes over from another, and the sizes of pieces; all are measured, see
// docs/performance.md.
#pragma once

#include <cohort/backend.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "backends/shm/protocol/board.h"

namespace cohort::shm {

/// Whether the data of a reduction goes with the posts. Every rank reads and combines all of it, so the amount of work
/// grows with the number of ranks. It saves two waits, which take long where ranks outnumber processors.
inline bool is_small_reduction(std::size_t bytes, int ranks, bool has_own_cpus) {
  return bytes <= (has_own_cpus ? 8 * kib : post_bytes) && bytes * static_cast<std::size_t>(ranks - 1) <= 32 * kib;
}

/// One rank's part of an all-reduce chunk: large enough that the cost of flags is negligible, small enough that what a
/// rank has just copied in is still in its cache when others read it. With more than two ranks the parts are
/// smaller, because a chunk consists of more of them.
inline std::size_t reduce_chunk(std::size_t bytes, int ranks) {
  const std::size_t most = (ranks <= 2 ? 256 : 128) * kib;
  const auto line_each = cache_line * static_cast<std::size_t>(ranks);
  return std::clamp<std::size_t>((bytes + line_each - 1) / line_each * line_each, line_each, most);
}

/// Whether, in a broadcast within memory of the group, every rank copies a slice to all others rather than copying all
/// of the data for itself. Writing into the caches of others pays only if the data is too large for them anyway, or if
/// there is only one other rank.
inline bool is_shared_work(std::size_t bytes, int ranks) {
  return ranks == 2 || bytes >= mib;
}

/// Whether the outputs exceed the cache of one core. They are then written past the caches, which saves reading each
/// line before it is overwritten, a third of the traffic of a copy.
inline bool bypasses_caches(std::span<const Bytes> outputs) {
  std::size_t bytes = 0;
  for (const auto& output : outputs) bytes += output.size();
  return bytes >= 8 * mib;
}

/// What a rank reads of each other rank before it combines it: small enough that it is still in the cache, large enough
/// that a system call costs little. All of it fits into a rank's staging areas.
inline std::size_t read_piece(int ranks) {
  const auto others = static_cast<std::size_t>(std::max(ranks - 1, 1));
  return std::min<std::size_t>(128 * kib, 2 * stage_area(ranks) / others);
}

/// The size of a chunk of an exchange, and of its part for one rank where each rank gets its own.
inline std::size_t exchange_chunk(std::size_t bytes) {
  return std::clamp<std::size_t>((bytes / 2 + 4095) / 4096 * 4096, 16 * kib, 128 * kib);
}

}  // namespace cohort::shm
