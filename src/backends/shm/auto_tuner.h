// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace cohort::shm {

/// Finds by measurement which way moves ordinary memory fastest on this machine. No fixed table can tell: copies by the
/// kernel take the same time always, but staging passes the data from cache to cache, which on virtual machines took
/// anything from half of that time to five times as long, and changed from second to second; and whether chunks had
/// better stay in two places or move on depends on how the processor's caches work together (docs/performance.md).
///
/// The first operations of a given size use all ways in turn; after that the fastest one is used, and the others are
/// tried again occasionally. One rank decides and tells the others, so that all use the same way.
class AutoTuner {
 public:
  enum class Way : std::uint8_t {
    staged,                ///< through staging areas, in which chunks move on (stage_slots.h)
    staged_in_two_places,  ///< the same, but chunks alternate between two places
    read,                  ///< copied by the kernel out of the peer's memory
  };
  static constexpr std::array all_ways{Way::staged, Way::staged_in_two_places, Way::read};
  static constexpr std::array staged_ways{Way::staged, Way::staged_in_two_places};
  static constexpr std::array message_ways{Way::staged, Way::read};

  /// What is tuned by itself: exchanges with one source and with many, reductions, messages (whose parts are staged).
  enum class Pattern : std::uint8_t { from_one, from_all, reduce_scatter, reduce, all_reduce, message };

  /// Pieces of at least this size are tuned.
  static constexpr std::size_t smallest = std::size_t{4} << 10U;
  /// What is used where nothing is tuned.
  static constexpr Way otherwise = Way::staged_in_two_places;

  /// The way for the next operation with pieces of `piece` bytes. The ways to choose from must always be the same for a
  /// pattern.
  Way next(Pattern pattern, std::size_t piece, std::span<const Way> ways) {
    auto& record = record_of(pattern, piece);
    const auto count = record.count++;
    const auto n = static_cast<std::uint32_t>(ways.size());
    if (count < 2 * n) return ways[count % n];
    const auto fastest = static_cast<std::uint32_t>(
        std::min_element(ways.begin(), ways.end(),
                         [&](Way a, Way b) { return record.cost_of(a) < record.cost_of(b); }) -
        ways.begin());
    // More often at first, when pages are still being touched for the first time.
    const bool is_try = count >= 16 && (std::has_single_bit(count) || count % between_tries(piece) == 0);
    return is_try ? ways[(fastest + 1 + record.tries++ % (n - 1)) % n] : ways[fastest];
  }
  void took(Way way, Pattern pattern, std::size_t piece, std::chrono::nanoseconds time) {
    auto& record = record_of(pattern, piece);
    const auto now = static_cast<double>(time.count()) / static_cast<double>(piece);
    // Noise only ever adds time, and an operation that was interrupted can take a thousand times as long: a worse time
    // counts when it came twice in a row.
    record.cost_of(way) = std::min(now, std::exchange(record.last[static_cast<std::size_t>(way)], now));
  }

 private:
  /// Trying a way that takes five times as long then costs 2 % of the time, and does not show in the 99th percentile.
  /// Large pieces are tried more often, because machines change while few of them are moved.
  static constexpr std::uint32_t between_tries(std::size_t piece) { return piece < (1U << 20U) ? 256 : 64; }

  struct Record {
    std::array<double, all_ways.size()> cost{1e9, 1e9, 1e9};  ///< nanoseconds per byte of a piece
    std::array<double, all_ways.size()> last{1e9, 1e9, 1e9};  ///< the same, of the last operation
    std::uint32_t count = 0;
    std::uint32_t tries = 0;
    double& cost_of(Way way) { return cost[static_cast<std::size_t>(way)]; }
  };

  Record& record_of(Pattern pattern, std::size_t piece) {
    const auto doublings = static_cast<std::size_t>(std::bit_width(piece / smallest));
    auto& records = records_[static_cast<std::size_t>(pattern)];
    return records[std::min(doublings, records.size() - 1)];
  }

  std::array<std::array<Record, 16>, 6> records_;  ///< the last is for 64 MiB and more
};

}  // namespace cohort::shm
