// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace cohort::shm {

/// Finds by measurement which of two ways moves large ordinary memory faster on this machine. No fixed table can tell:
/// on one machine, staging was as fast as copies by the peers' kernel or up to a fifth faster; on another it took up to
/// three times as long, and that changed from minute to minute (docs/performance.md).
///
/// The first operations of a given size use both ways in turn; after that the faster one is used, and the other is
/// tried again occasionally. One rank decides and tells the others, so that all use the same way.
class AutoTuner {
 public:
  enum class Way : std::uint8_t { staged, read };

  /// Pieces of at least this size are tuned; for smaller ones the rule in tuning.h applies.
  static constexpr std::size_t smallest = std::size_t{1} << 20U;

  /// The way for the next operation with pieces of `piece` bytes.
  Way next(std::size_t piece, bool has_one_source) {
    auto& record = record_of(piece, has_one_source);
    const auto count = record.count++;
    const auto faster = record.cost[0] <= record.cost[1] ? Way::staged : Way::read;
    if (count < first_tries) return count % 2 == 0 ? Way::staged : Way::read;
    return count % between_tries == 0 ? other(faster) : faster;
  }
  void took(Way way, std::size_t piece, bool has_one_source, std::chrono::nanoseconds time) {
    auto& cost = record_of(piece, has_one_source).cost[static_cast<std::size_t>(way)];
    const auto now = static_cast<double>(time.count()) / static_cast<double>(piece);
    // Noise only ever adds time: a better time counts at once, a worse one raises the estimate gradually.
    cost = now < cost ? now : cost + (now - cost) / 8;
  }

 private:
  static constexpr std::uint32_t first_tries = 4;
  static constexpr std::uint32_t between_tries =
      64;  ///< trying a way that takes twice as long then costs 2 % of the time

  struct Record {
    std::array<double, 2> cost{1e9, 1e9};  ///< nanoseconds per byte of a piece
    std::uint32_t count = 0;
  };

  static Way other(Way way) { return way == Way::staged ? Way::read : Way::staged; }
  Record& record_of(std::size_t piece, bool has_one_source) {
    const auto doublings = static_cast<std::size_t>(std::bit_width(piece / smallest));
    return records_[has_one_source ? 1 : 0][std::min(doublings, records_[0].size() - 1)];
  }

  std::array<std::array<Record, 8>, 2> records_;
};

}  // namespace cohort::shm
