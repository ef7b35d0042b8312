// SPDX-License-Identifier: BSD-3-Clause
//
// Where one algorithm takes over from another, and how large pieces are: measured, see docs/performance.md.
#pragma once

#include <cohort/backend.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "backends/shm/board.h"

namespace cohort::shm {

/// A reduction whose data goes with the posts: every rank reads everything, so what it reads grows with the ranks.
inline bool is_small_reduction(std::size_t bytes, int ranks) {
  return bytes <= post_bytes && bytes * static_cast<std::size_t>(ranks - 1) <= 32 * kib;
}

/// One rank's part of an all-reduce chunk: large enough that flags do not count, small enough that what a rank has just
/// copied in is still in its cache when others read it. More than two ranks read more at a time.
inline std::size_t reduce_chunk(std::size_t bytes, int ranks) {
  const std::size_t most = (ranks <= 2 ? 256 : 128) * kib;
  const auto line_each = cache_line * static_cast<std::size_t>(ranks);
  return std::clamp<std::size_t>((bytes + line_each - 1) / line_each * line_each, line_each, most);
}

/// A broadcast among memory of the group in which every rank copies a slice to all others, rather than each the whole
/// for itself: writing into others' caches pays only when the data is too large for them anyway, or there is one other.
inline bool is_shared_work(std::size_t bytes, int ranks) {
  return ranks == 2 || bytes >= mib;
}

/// Outputs that no cache of one core holds: written past the caches, which saves reading each line before it is
/// overwritten, a third of the traffic of a copy.
inline bool bypasses_caches(std::span<const Bytes> outputs) {
  std::size_t bytes = 0;
  for (const auto& output : outputs) bytes += output.size();
  return bytes >= 8 * mib;
}

/// Ordinary memory is read by the kernel rather than staged, one copy for two: pays from the cost of the system call
/// on, up to where auto_tuner.h takes over. Many readers of one process get into each other's way.
inline bool is_read(std::size_t longest_piece, bool has_one_source, int ranks) {
  if (has_one_source && (ranks > 2 || longest_piece > 512 * kib)) return false;
  return longest_piece >= 16 * kib;
}

/// A chunk of an exchange, and its part for one rank where each gets its own.
inline std::size_t exchange_chunk(std::size_t bytes) {
  return std::clamp<std::size_t>((bytes / 2 + 4095) / 4096 * 4096, 16 * kib, 128 * kib);
}

}  // namespace cohort::shm
