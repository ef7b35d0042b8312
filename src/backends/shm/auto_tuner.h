// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace cohort::shm {

/// Finds by measurement which of two ways moves ordinary memory faster on this machine: through staging buffers, or by
/// copies that the kernel makes out of the peer's memory. No fixed table can tell: copies by the kernel take the same
/// time always, but staging passes the data from cache to cache, which on virtual machines took anything from two thirds
/// of that time to five times as long, and changed from second to second (docs/performance.md).
///
/// The first operations of a given size use both ways in turn; after that the faster one is used, and the other is
/// tried again occasionally. One rank decides and tells the others, so that all use the same way.
class AutoTuner {
 public:
  enum class Way : std::uint8_t { staged, read };
  /// What is tuned by itself: exchanges with one source and with many, reductions, messages (whose parts are staged).
  enum class Pattern : std::uint8_t { from_one, from_all, reduce_scatter, all_reduce, message };

  /// Pieces of at least this size are tuned; smaller ones are staged.
  static constexpr std::size_t smallest = std::size_t{16} << 10U;

  /// The way for the next operation with pieces of `piece` bytes.
  Way next(Pattern pattern, std::size_t piece) {
    auto& record = record_of(pattern, piece);
    const auto count = record.count++;
    const auto faster = record.cost[0] <= record.cost[1] ? Way::staged : Way::read;
    if (count < first_tries) return count % 2 == 0 ? Way::staged : Way::read;
    // More often at first, when pages are still being touched for the first time.
    return std::has_single_bit(count) || count % between_tries == 0 ? other(faster) : faster;
  }
  void took(Way way, Pattern pattern, std::size_t piece, std::chrono::nanoseconds time) {
    auto& cost = record_of(pattern, piece).cost[static_cast<std::size_t>(way)];
    const auto now = static_cast<double>(time.count()) / static_cast<double>(piece);
    // Noise only ever adds time: a better time counts at once, a worse one raises the estimate gradually, and by an
    // eighth at most, because an operation that was interrupted can take a thousand times as long.
    cost = now < cost ? now : cost + (std::min(now, 2 * cost) - cost) / 8;
  }

 private:
  static constexpr std::uint32_t first_tries = 4;
  /// Trying a way that takes five times as long then costs 2 % of the time, and does not show in the 99th percentile.
  static constexpr std::uint32_t between_tries = 256;

  struct Record {
    std::array<double, 2> cost{1e9, 1e9};  ///< nanoseconds per byte of a piece
    std::uint32_t count = 0;
  };

  static Way other(Way way) { return way == Way::staged ? Way::read : Way::staged; }
  Record& record_of(Pattern pattern, std::size_t piece) {
    const auto doublings = static_cast<std::size_t>(std::bit_width(piece / smallest));
    return records_[static_cast<std::size_t>(pattern)][std::min(doublings, records_[0].size() - 1)];
  }

  std::array<std::array<Record, 14>, 5> records_;  ///< the last is for 128 MiB and more
};

}  // namespace cohort::shm
