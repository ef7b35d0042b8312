// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/collectives/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/shm/collectives/stage_slots.h"
#include "backends/shm/protocol/pipeline.h"
#include "core/rank_index.h"
#include "reduce/copy.h"

namespace cohort::shm {

void copy_own(Bytes to, ConstBytes from) {
  if (to.data() == from.data()) return;
  bypasses_caches({&to, 1}) ? reduce::stream_copy(to.data(), from.data(), from.size())
                            : reduce::copy(to.data(), from.data(), from.size());
}

std::string describe_wrong_piece(int from, std::size_t offered, int to, std::size_t expected) {
  return fmt::format("rank {} sends {} bytes to rank {}, which expects {}", from, offered, to, expected);
}

void Exchange::post() {
  transfer_.publish(tables_.write(offers_));
  collective_.await_all();
  check_sizes();
}

void Exchange::move() {
  bool any_direct = false;
  std::uint64_t longest_staged = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const auto longest = longest_from(rank);
    if (longest == 0) continue;
    if (collective_.is_reachable(rank)) {
      any_direct = true;
    } else {
      longest_staged = std::max(longest_staged, longest);
    }
  }
  transfer_.run(longest_staged, !any_direct, [&](AutoTuner::Way way) {
    const bool reads = way == AutoTuner::Way::read;
    if (any_direct) take_directly();
    if (reads) take_by_reading();
    if (!reads && longest_staged > 0) take_staged(longest_staged, way == AutoTuner::Way::staged_in_two_places);
    // What the others take where it lies must not change until all of them have taken it.
    if (any_direct || reads) collective_.meet();
  });
}

void Exchange::copy_out(std::byte* to, const std::byte* from, std::size_t bytes) const {
  streams_ ? reduce::stream_copy(to, from, bytes) : reduce::copy(to, from, bytes);
}

std::size_t Exchange::own_longest() const {
  std::size_t longest = 0;
  for (const auto& offer : offers_) longest = std::max(longest, offer.size());
  for (const auto& to : takes_) longest = std::max(longest, to.size());
  return longest;
}

void Exchange::check_sizes() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || takes_.empty()) continue;
    const auto offered = tables_.lane(rank, rank_).bytes;
    if (offered == take(rank).size() || (tables_.lanes() == 1 && take(rank).empty())) continue;
    collective_.mismatch(rank, describe_wrong_piece(rank, offered, rank_, take(rank).size()));
  }
}

void Exchange::take_directly() {
  for (int step = 1; step < size_; ++step) {
    const int rank = (rank_ + step) % size_;
    const auto to = take(rank);
    if (to.empty() || !collective_.is_reachable(rank)) continue;
    copy_out(to.data(), collective_.find(rank, tables_.lane(rank, rank_).location, to.size()), to.size());
  }
}

void Exchange::take_by_reading() {
  for (int step = 1; step < size_; ++step) {
    const int rank = (rank_ + step) % size_;
    const auto to = take(rank);
    if (to.empty() || collective_.is_reachable(rank)) continue;
    collective_.read(rank, tables_.lane(rank, rank_).location, to.data(), to.size());
  }
}

void Exchange::take_staged(std::uint64_t longest, bool in_two_places) {
  const auto chunk = std::min(stage_bytes, exchange_chunk(longest) * tables_.lanes());
  const auto width = lane_width(tables_.lanes(), chunk);
  const StageSlots slots(stage_area(size_), width * tables_.lanes(), collective_.chunk_base(), in_two_places);
  const auto chunks = static_cast<std::uint32_t>((longest + width - 1) / width);
  const bool fills = !collective_.is_reachable(rank_) && longest_from(rank_) > 0;
  bool drains = false;
  for (int rank = 0; rank < size_; ++rank) {
    drains = drains || (rank != rank_ && !take(rank).empty() && !collective_.is_reachable(rank));
  }
  if (fills) collective_.need_stage();
  const auto part = [&](std::size_t bytes, std::uint32_t c) {
    const auto at = std::min<std::size_t>(bytes, c * width);
    return std::pair(at, std::min(width, bytes - at));
  };
  const auto fill = [&](std::uint32_t c) {
    auto* const to = board_.stage_in(rank_) + slots.offset(c);
    for (std::size_t i = 0; i < tables_.lanes(); ++i) {
      if (tables_.lanes() > 1 && static_cast<int>(i) == rank_) continue;
      const auto [at, bytes] = part(offers_[i].size(), c);
      reduce::copy(to + i * width, offers_[i].data() + at, bytes);
    }
  };
  const auto drain = [&](std::uint32_t c, const auto& await_filled) {
    for (int step = 1; step < size_; ++step) {
      const int rank = (rank_ + step) % size_;
      const auto to = take(rank);
      const auto [at, bytes] = part(to.size(), c);
      if (bytes == 0 || collective_.is_reachable(rank)) continue;
      await_filled(rank);
      const auto lane = tables_.lanes() == 1 ? 0 : index_of(rank_);
      copy_out(to.data() + at, board_.stage_in(rank) + slots.offset(c) + lane * width, bytes);
    }
  };
  exchange_chunks(board_, rank_, size_, collective_.chunk_base(), chunks, fills, drains, collective_.monitor(), fill,
                  drain);
  collective_.chunks_done(chunks);
}

}  // namespace cohort::shm
