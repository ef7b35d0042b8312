// SPDX-License-Identifier: BSD-3-Clause
//
// What the collectives that move data without changing it have in common: broadcast, all-gather, gather, scatter and
// all-to-all are one algorithm, in which each rank offers something to one or all and takes something from some.
//
//   direct   offered from memory of the group: takers copy it from there.      one copy per byte; two waits
//   read     ordinary memory, where ranks may read each other's: takers have the kernel copy it.    the same, and a
//            system call
//   staged   through staging buffers, chunk by chunk, while the next chunk is copied in.       two copies per byte
//
// Whether large ordinary memory is read or staged is found by trying (auto_tuner.h). Direct and staged mix: each rank's
// offer is taken from where it lies.
#pragma once

#include <cohort/backend.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "backends/shm/collective.h"
#include "backends/shm/tuning.h"

namespace cohort::shm {

/// What one rank offers to the others. One lane for all (broadcast, gathers) or one for each (scatter, all-to-all,
/// reduce-scatter). Every rank posts a table of its lanes, so each knows how many chunks the whole takes, and finds what
/// lies in memory of the group.
struct Lane {
  std::uint64_t location;  ///< in memory of the group; for a rank that is not reachable, the address it has there
  std::uint64_t bytes;
};

/// The tables of all ranks, as posted.
class LaneTables {
 public:
  /// `lanes`: 1, or one for each rank.
  LaneTables(Engine& engine, Collective& collective, std::size_t lanes)
      : engine_(engine), collective_(collective), lanes_(lanes) {}

  std::size_t bytes() const { return lanes_ * sizeof(Lane); }
  /// Writes this rank's table (before publish). Whether all of it can be reached by the others.
  bool write(std::span<const ConstBytes> offers) {
    bool is_reachable = true;
    for (const auto& offer : offers) {
      is_reachable = is_reachable && engine_.peer_memory().locate(offer.data(), offer.size()).has_value();
    }
    auto* at = collective_.payload(bytes());
    for (std::size_t i = 0; i < lanes_; ++i, at += sizeof(Lane)) {
      const auto offer = offers.empty() ? ConstBytes() : offers[i];
      const auto location = is_reachable ? *engine_.peer_memory().locate(offer.data(), offer.size())
                                         : reinterpret_cast<std::uint64_t>(offer.data());
      const Lane lane{.location = location, .bytes = offer.size()};
      std::memcpy(at, &lane, sizeof(lane));
    }
    return is_reachable;
  }
  /// What `from` offers to `to` (after its post is there).
  Lane lane(int from, int to) const {
    Lane lane{};
    const auto i = lanes_ == 1 ? 0 : static_cast<std::size_t>(to);
    std::memcpy(&lane, collective_.payload_of(from, bytes()) + i * sizeof(Lane), sizeof(lane));
    return lane;
  }
  /// The longest lane that a rank offers to another.
  std::uint64_t longest(int from) const {
    std::uint64_t most = 0;
    for (int to = 0; to < engine_.size(); ++to) {
      if (to != from) most = std::max(most, lane(from, to).bytes);
    }
    return most;
  }
  std::size_t lanes() const { return lanes_; }

 private:
  Engine& engine_;
  Collective& collective_;
  std::size_t lanes_;
};

/// The width of a lane in a staging buffer: the whole of it, or an equal part for each rank.
inline std::size_t lane_width(std::size_t lanes, std::size_t chunk) {
  return std::max<std::size_t>(cache_line, chunk / lanes / cache_line * cache_line);
}

/// `takes[r]`: where what comes from rank r goes; nothing is taken where it is empty. `source`: the only rank that
/// offers, where it is not all.
class Exchange {
 public:
  static constexpr int all = -1;

  Exchange(Engine& engine, Collective& collective, std::span<const ConstBytes> offers, std::size_t lanes,
           std::span<const Bytes> takes, int source = all)
      : engine_(engine),
        board_(engine.board()),
        rank_(engine.rank()),
        size_(engine.size()),
        collective_(collective),
        offers_(offers),
        takes_(takes),
        source_(source),
        tables_(engine, collective, lanes) {}

  void run() {
    post();
    move();
  }
  /// Posts what this rank offers and waits for the others' posts.
  void post();
  void move();

  /// Where `rank` has what it offers to all.
  std::byte* place(int rank) { return collective_.find(rank, tables_.lane(rank, rank).location, offers_[0].size()); }

 private:
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) const;
  /// The largest piece this rank knows of before it has seen the others' tables.
  std::size_t own_longest() const;
  AutoTuner::Way preference() const;
  bool goes_by_reading(std::size_t longest) const;
  std::uint64_t longest_from(int rank) const { return source_ == all || source_ == rank ? tables_.longest(rank) : 0; }
  Bytes take(int rank) const { return takes_.empty() ? Bytes() : takes_[static_cast<std::size_t>(rank)]; }
  void check_sizes();
  void take_directly();
  void take_by_reading();
  void take_staged(std::uint64_t longest);

  Engine& engine_;
  const Board& board_;
  const int rank_;
  const int size_;
  Collective& collective_;
  std::span<const ConstBytes> offers_;
  std::span<const Bytes> takes_;
  const int source_;
  LaneTables tables_;
  const bool streams_ = bypasses_caches(takes_);
  AutoTuner::Way preferred_ = AutoTuner::Way::staged;  ///< on the first rank
};

/// A list with one entry for each rank of which only one is set.
class OnlyFrom {
 public:
  OnlyFrom(int size, int rank, Bytes bytes) : size_(size) { all_[static_cast<std::size_t>(rank)] = bytes; }
  std::span<const Bytes> get() const { return {all_.data(), static_cast<std::size_t>(size_)}; }

 private:
  int size_;
  std::array<Bytes, most_ranks> all_{};
};

/// This rank's own piece; nothing where input and output are the same memory.
void copy_own(Bytes to, ConstBytes from);

}  // namespace cohort::shm
