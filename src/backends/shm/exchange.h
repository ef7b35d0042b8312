// SPDX-License-Identifier: BSD-3-Clause
//
// Lanes: what one rank offers to the others in a collective that moves data. One lane for all (broadcast, gathers) or
// one for each (scatter, all-to-all, reduce-scatter). Every rank posts a table of its lanes, so each knows how many
// chunks the whole takes, and finds what lies in memory of the group.
#pragma once

#include <cohort/backend.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "backends/shm/collective.h"

namespace cohort::shm {

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

}  // namespace cohort::shm
