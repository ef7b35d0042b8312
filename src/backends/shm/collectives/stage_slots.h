// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "backends/shm/protocol/posts.h"

namespace cohort::shm {

/// Where the chunks of an operation lie in the ranks' staging areas. Two places would do for the protocol (pipeline.h).
/// But a place that a peer has just read is still in that peer's cache, and writing it again waits until the peer has
/// given up every line. Where chunks move on through the whole area instead, from operation to operation, the lines
/// have left that cache by then, if the area is twice as large: on processors whose cores share a fast cache this makes
/// staging up to three times as fast, and on others it does not (docs/performance.md). So it is measured
/// (auto_tuner.h).
class StageSlots {
 public:
  /// `base` is the number of chunks before this operation, which is the same on all ranks (Collective::chunk_base). No
  /// rank uses a chunk of an earlier operation any more: all have posted this one.
  StageSlots(std::size_t area_bytes, std::size_t chunk_bytes, std::uint32_t base, bool in_two_places)
      : slot_bytes_(std::max(std::bit_ceil(chunk_bytes), std::size_t{4096})),
        slots_(in_two_places ? 2 : static_cast<std::uint32_t>(area_bytes / slot_bytes_)),
        base_(base) {}

  /// The offset of chunk c; that of chunk c + 1 is another.
  std::size_t offset(std::uint32_t c) const { return (base_ + c) % slots_ * slot_bytes_; }

 private:
  std::size_t slot_bytes_;
  std::uint32_t slots_;  ///< a power of two, so that offsets go on where `base` overflows
  std::uint32_t base_;
};

}  // namespace cohort::shm
