// SPDX-License-Identifier: BSD-3-Clause
//
// The board of a group: the layout of its shared segment.
//
//   header         the members, the failure (only the first is recorded), and who survives it (shrink)
//   per rank       its state, its two chunk flags, its two posts with up to 16 KiB each
//   per rank       staging: an area for input, one for results      pages exist from the first large operation on
//   per pair       a ring of messages from one to the other         pages exist from the first message on
//
// Everything has a single writer except the failure (the first writer wins) and the counts of sleepers. The board
// contains no pointers.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "backends/shm/memory/segment.h"
#include "backends/shm/protocol/agreement.h"
#include "backends/shm/protocol/atomics.h"
#include "backends/shm/protocol/flags.h"
#include "backends/shm/protocol/posts.h"
#include "backends/shm/protocol/withdrawals.h"
#include "core/last_error.h"
#include "core/rank_index.h"

namespace cohort::shm {

inline constexpr int most_ranks = 512;
inline constexpr std::size_t post_bytes = 16 * kib;     ///< largest payload of a post
inline constexpr std::size_t stage_bytes = 512 * kib;   ///< largest chunk of one rank
inline constexpr std::size_t message_bytes = 16 * kib;  ///< largest part of a message
inline constexpr std::size_t failure_text = 1024;

/// Flags are two cache lines apart, because processors fetch lines in pairs.
struct alignas(2 * cache_line) FlagLine {
  Flag<StdAtomics> flag;
};

/// The size of a rank's staging area for input, and of that for results: twice the cache of a core, as far as the areas
/// of all ranks fit into the cache that cores share (stage_slots.h).
constexpr std::size_t stage_area(int ranks) {
  return ranks <= 8 ? 2 * mib : 1 * mib;
}
static_assert(stage_area(most_ranks) >= 2 * stage_bytes);

/// The number of parts in flight from one rank to another: 2 MiB of them between two ranks, for the same reason, but of
/// what a rank sends to all others not more than 4 MiB, down to 8 parts for each.
constexpr std::uint32_t message_depth(int ranks) {
  return std::clamp(std::bit_floor(256U / static_cast<std::uint32_t>(ranks)), 8U, 128U);
}

enum class RankState : std::uint32_t { absent, joined, left };

/// Whom a rank waits for, if that takes longer than a moment (waiting.h).
struct alignas(2 * cache_line) AwaitedRanks {
  std::array<std::atomic<std::uint64_t>, most_ranks / 64> ranks;  ///< a bit for each
  std::atomic<std::int64_t> until;                                ///< milliseconds on the steady clock
};

struct alignas(2 * cache_line) RankInfo {
  std::atomic<std::uint32_t> state;
  std::atomic<std::int32_t> pid;
  /// Incremented by a peer that sends a message to this rank, or makes room for one, while this rank sleeps
  /// (messenger.cpp).
  std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> listeners;
  /// The error that unwound this rank's stack when it left, or an empty text. Valid if `state` is `left`.
  std::array<char, last_error_bytes> last_error;
  AwaitedRanks awaited;
};

/// Why the group is broken. `stage`: 0 empty, 1 being written, 2 ready to be read. A failure and its cause, which is
/// that of a larger group, have the same text.
struct alignas(2 * cache_line) FailureRecord {
  std::atomic<std::uint32_t> stage;
  std::uint32_t kind;
  std::int32_t rank;
  std::int32_t reporter;
  std::uint32_t has_cause;
  std::uint32_t cause_kind;
  std::int32_t cause_rank;
  std::uint32_t cause_is_explained;
  std::array<char, failure_text> text;
};

/// Whether the group was made, decided once for all ranks: 0 open, 1 made; else one rank more than 1 has given up
/// before (bootstrap.cpp). The other members are valid if it was made.
struct MakingRecord {
  std::atomic<std::uint32_t> decision;
  std::uint32_t all_reach_all;
  std::uint32_t all_read_all;
  std::uint32_t own_cpus;  ///< every rank has a processor to itself
};

struct Header {
  std::uint64_t magic;
  std::uint32_t size;
  FailureRecord failure;
  MakingRecord making;
};

/// A part of a message, or a notice about one (messenger.cpp). Up to 32 bytes lie beside the flag.
struct alignas(cache_line) Part {
  std::atomic<std::uint32_t> number;
  std::uint16_t kind;
  std::uint16_t bytes;
  std::int32_t tag;
  std::uint32_t type;  ///< message_type()
  std::uint64_t id;
  std::uint64_t total;
  std::array<std::byte, post_inline_bytes> payload;
};
static_assert(sizeof(Post<StdAtomics>) == cache_line && sizeof(Part) == cache_line && message_bytes <= UINT16_MAX);

/// The messages from one rank to another. The slots of the parts in flight lie behind it (Board::slot).
struct PairRing {
  FlagLine consumed;  ///< raised by the receiver
  alignas(2 * cache_line) Withdrawals<StdAtomics> withdrawals;
  struct Slot {
    Part part;
    std::array<std::byte, message_bytes> payload;
  };
};

class Board {
 public:
  static constexpr std::uint64_t magic = 0x31'74'72'6f'68'6f'63;  // "cohort1"

  static std::size_t size_for(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    return agreement_at(n) + agreement_bytes(n);
  }

  /// For the process that makes the segment: also reserves the pages of the fixed part.
  static Board make(std::shared_ptr<Segment> segment, int ranks) {
    segment->reserve(0, stages_at(static_cast<std::size_t>(ranks)));
    auto* const header = new (segment->base()) Header{};
    header->size = static_cast<std::uint32_t>(ranks);
    header->magic = magic;
    return {std::move(segment), ranks};
  }

  Board(std::shared_ptr<Segment> segment, int ranks) : segment_(std::move(segment)), ranks_(ranks) {}

  bool is_sound() const {
    return segment_->size() == size_for(ranks_) && header().magic == magic &&
           header().size == static_cast<std::uint32_t>(ranks_);
  }
  int ranks() const { return ranks_; }

  Header& header() const { return *reinterpret_cast<Header*>(segment_->base()); }
  RankInfo& info(int rank) const { return area(rank).info; }
  Flag<StdAtomics>& filled(int rank) const { return area(rank).filled.flag; }
  Flag<StdAtomics>& drained(int rank) const { return area(rank).drained.flag; }
  Post<StdAtomics>& post(int rank, std::uint32_t k) const { return area(rank).slots[k % post_depth].post; }
  std::byte* payload(int rank, std::uint32_t k) const { return area(rank).slots[k % post_depth].payload.data(); }

  /// A rank's staging area for input; that for results follows it.
  std::byte* stage_in(int rank) const {
    return segment_->base() + stages_at(index_of(ranks_)) + index_of(rank) * 2 * stage_area(ranks_);
  }
  std::byte* stage_out(int rank) const { return stage_in(rank) + stage_area(ranks_); }
  /// Called by the rank itself.
  void reserve_stage(int rank) const {
    segment_->reserve(offset_of(stage_in(rank)), 2 * stage_area(ranks_));
    segment_->prefault(offset_of(stage_in(rank)), 2 * stage_area(ranks_));
  }

  PairRing& ring(int from, int to) const {
    const auto n = index_of(ranks_);
    const auto at = rings_at(n) + (index_of(from) * n + index_of(to)) * ring_bytes(n);
    return *reinterpret_cast<PairRing*>(segment_->base() + at);
  }
  /// The slot of the part with this number, in a ring of message_depth().
  PairRing::Slot& slot(PairRing& ring, std::uint32_t number) const {
    return reinterpret_cast<PairRing::Slot*>(&ring + 1)[number % message_depth(ranks_)];
  }
  void reserve_ring(int from, int to) const {
    segment_->reserve(offset_of(&ring(from, to)), ring_bytes(index_of(ranks_)));
  }

  /// Where the survivors of a failure agree on which ranks are left (agreement.h). Its pages are reserved.
  std::byte* agreement() const {
    const auto n = static_cast<std::size_t>(ranks_);
    segment_->reserve(agreement_at(n), agreement_bytes(n));
    return segment_->base() + agreement_at(n);
  }

 private:
  struct RankArea {
    RankInfo info;
    FlagLine filled;
    FlagLine drained;
    struct Slot {
      Post<StdAtomics> post;
      std::array<std::byte, post_bytes> payload;
    };
    std::array<Slot, post_depth> slots;
  };

  static constexpr std::size_t page = 4096;
  static constexpr std::size_t up(std::size_t bytes) { return (bytes + page - 1) / page * page; }
  static constexpr std::size_t areas_at() { return up(sizeof(Header)); }
  static constexpr std::size_t stages_at(std::size_t n) { return up(areas_at() + n * sizeof(RankArea)); }
  static constexpr std::size_t rings_at(std::size_t n) {
    return stages_at(n) + n * 2 * stage_area(static_cast<int>(n));
  }
  static constexpr std::size_t ring_bytes(std::size_t n) {
    return sizeof(PairRing) + message_depth(static_cast<int>(n)) * sizeof(PairRing::Slot);
  }
  static constexpr std::size_t agreement_at(std::size_t n) { return up(rings_at(n) + n * n * ring_bytes(n)); }

  RankArea& area(int rank) const { return reinterpret_cast<RankArea*>(segment_->base() + areas_at())[index_of(rank)]; }
  std::size_t offset_of(const void* at) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(at) - segment_->base());
  }

  std::shared_ptr<Segment> segment_;
  int ranks_;
};

}  // namespace cohort::shm
