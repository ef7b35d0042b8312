// SPDX-License-Identifier: BSD-3-Clause
//
// What the collectives that move data without changing it have in common: broadcast, all-gather, gather, scatter and
// all-to-all are one algorithm, in which each rank offers data to one rank or to all, and takes data from some.
//
//   direct   the offer is in memory of the group: takers copy it from there.            one copy per byte; two waits
//   read     the offer is in ordinary memory that ranks may read of each other: the kernel copies it for the taker.
//                                                                                       the same, and a system call
//   staged   through staging buffers, chunk by chunk, while the next chunk is copied in.          two copies per byte
//
// Whether ordinary memory is read or staged is measured (auto_tuner.h). Direct and staged offers can mix in one
// operation: each rank's offer is taken from where it lies.
#pragma once

#include <cohort/backend.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "backends/shm/collectives/collective.h"
#include "backends/shm/collectives/tuned_transfer.h"
#include "backends/shm/collectives/tuning.h"
#include "core/rank_index.h"

namespace cohort::shm {

/// A piece of memory that one rank offers to others. A rank has one lane for all other ranks (broadcast, gathers) or
/// one lane for each (scatter, all-to-all, reduce-scatter). Every rank posts a table of its lanes, so that the others
/// know how many chunks the operation takes and where the offers in memory of the group are.
struct Lane {
  std::uint64_t location;  ///< in memory of the group; if that rank is not reachable, the address in its process
  std::uint64_t bytes;
};

/// The lane tables of all ranks, as posted.
class LaneTables {
 public:
  /// `lanes` is 1, or the number of ranks.
  LaneTables(Engine& engine, Collective& collective, std::size_t lanes)
      : engine_(engine), collective_(collective), lanes_(lanes) {}

  std::size_t bytes() const { return lanes_ * sizeof(Lane); }
  /// Writes this rank's table; called before publish(). Returns whether the other ranks can access all of it.
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
  /// What `from` offers to `to`; valid once the post of `from` has arrived.
  Lane lane(int from, int to) const {
    Lane lane{};
    const auto i = lanes_ == 1 ? 0 : index_of(to);
    std::memcpy(&lane, collective_.payload_of(from, bytes()) + i * sizeof(Lane), sizeof(lane));
    return lane;
  }
  /// The size of the longest lane that a rank offers to another.
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

/// The width of a lane in a staging buffer: the whole buffer, or an equal part for each rank.
inline std::size_t lane_width(std::size_t lanes, std::size_t chunk) {
  return std::max<std::size_t>(cache_line, chunk / lanes / cache_line * cache_line);
}

/// `takes[r]` receives what rank r offers; nothing is taken from r if it is empty. `source` is the only rank that
/// offers data, or `all`.
class Exchange {
 public:
  static constexpr int all = -1;

  Exchange(Engine& engine, Collective& collective, std::span<const ConstBytes> offers, std::size_t lanes,
           std::span<const Bytes> takes, int source = all)
      : board_(engine.board()),
        rank_(engine.rank()),
        size_(engine.size()),
        collective_(collective),
        offers_(offers),
        takes_(takes),
        source_(source),
        tables_(engine, collective, lanes),
        transfer_(engine, collective, source == all ? AutoTuner::Pattern::from_all : AutoTuner::Pattern::from_one,
                  own_longest()) {}

  void run() {
    post();
    move();
  }
  /// Posts what this rank offers and waits for the others' posts.
  void post();
  void move();

  /// Where the memory that `rank` offers to all ranks is mapped here.
  std::byte* place(int rank) { return collective_.find(rank, tables_.lane(rank, rank).location, offers_[0].size()); }

 private:
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) const;
  /// The largest piece that this rank knows of before it has read the tables of the others.
  std::size_t own_longest() const;
  std::uint64_t longest_from(int rank) const { return source_ == all || source_ == rank ? tables_.longest(rank) : 0; }
  Bytes take(int rank) const { return takes_.empty() ? Bytes() : takes_[index_of(rank)]; }
  void check_sizes();
  void take_directly();
  void take_by_reading();
  void take_staged(std::uint64_t longest, bool in_two_places);

  const Board& board_;
  const int rank_;
  const int size_;
  Collective& collective_;
  std::span<const ConstBytes> offers_;
  std::span<const Bytes> takes_;
  const int source_;
  LaneTables tables_;
  TunedTransfer transfer_;
  const bool streams_ = bypasses_caches(takes_);
};

std::string describe_wrong_piece(int from, std::size_t offered, int to, std::size_t expected);

/// A list with one entry per rank, of which only one is set.
class OnlyFrom {
 public:
  OnlyFrom(int size, int rank, Bytes bytes) : size_(size) { all_[index_of(rank)] = bytes; }
  std::span<const Bytes> get() const { return {all_.data(), index_of(size_)}; }

 private:
  int size_;
  std::array<Bytes, most_ranks> all_{};
};

/// Copies this rank's own piece; does nothing if input and output are the same memory.
void copy_own(Bytes to, ConstBytes from);

}  // namespace cohort::shm
