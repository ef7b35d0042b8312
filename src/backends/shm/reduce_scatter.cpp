// SPDX-License-Identifier: BSD-3-Clause
//
// Reduce-scatter: rank r gets everybody's r-th input, combined in rank order.
//
//   direct   every input lies in memory of the group: rank r combines out of all of them.       S read, S/n written
//   staged   each rank copies the others' parts in, chunk by chunk.         (n-1)/n S copied in, S read, S/n written
//
// There is no small form: the table of lanes is the post, so staging adds one wait to what a small form would need.
#include <fmt/format.h>

#include <array>

#include "backends/shm/exchange.h"
#include "backends/shm/pipeline.h"
#include "backends/shm/tuning.h"
#include "reduce/copy.h"
#include "reduce/kernels.h"

namespace cohort::shm {

void Engine::reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) {
  Collective collective(*this, {.op = OpType::reduce_scatter, .dtype = reduction.dtype, .reduce = reduction.op.kind()},
                        call);
  const auto lanes = static_cast<std::size_t>(size_);
  LaneTables tables(*this, collective, lanes);
  const bool is_reachable = tables.write(ins);
  collective.publish(is_reachable, reduction.op.factor());
  collective.await_all();

  std::array<double, most_ranks> factors;
  std::uint64_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    factors[static_cast<std::size_t>(rank)] = collective.number_of(rank);
    for (int to = 0; to < size_; ++to) longest = std::max(longest, tables.lane(rank, to).bytes);
    if (const auto offered = tables.lane(rank, rank_).bytes; offered != reduction.bytes()) {
      collective.mismatch(rank, fmt::format("rank {} gives {} bytes for rank {}, which expects {}", rank, offered,
                                            rank_, reduction.bytes()));
    }
  }

  const auto kernel = reduce::find_kernel(reduction.dtype, reduction.op.kind());
  std::array<const void*, most_ranks> sources;
  const auto combine = [&](void* out, std::size_t elements) {
    if (elements == 0) return;
    kernel({.data = sources.data(), .factors = factors.data(), .count = lanes}, {.data = &out, .count = 1}, elements,
           static_cast<double>(size_));
  };
  const auto* const own = ins[static_cast<std::size_t>(rank_)].data();

  if (collective.all_reachable()) {
    for (int rank = 0; rank < size_; ++rank) {
      sources[static_cast<std::size_t>(rank)] =
          collective.find(rank, tables.lane(rank, rank_).location, reduction.bytes());
    }
    combine(reduction.out, reduction.count);
    collective.meet();
    return;
  }

  collective.need_stage();
  const auto element = size_of(reduction.dtype);
  const auto width = lane_width(lanes, reduce_chunk(longest * lanes, size_));
  const auto chunks = static_cast<std::uint32_t>((longest + width - 1) / width);
  const auto part = [&](std::size_t bytes, std::uint32_t c) {
    const auto at = std::min<std::size_t>(bytes, c * width);
    return std::pair(at, std::min(width, bytes - at));
  };
  const auto fill = [&](std::uint32_t c) {
    auto* const to = board_.stage_in(rank_, c);
    for (std::size_t i = 0; i < lanes; ++i) {
      if (static_cast<int>(i) == rank_) continue;
      const auto [at, bytes] = part(ins[i].size(), c);
      reduce::copy(to + i * width, ins[i].data() + at, bytes);
    }
  };
  const auto drain = [&](std::uint32_t c, const auto& await_filled) {
    const auto [at, bytes] = part(reduction.bytes(), c);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) {
        sources[static_cast<std::size_t>(rank)] = own + at;
        continue;
      }
      await_filled(rank);
      sources[static_cast<std::size_t>(rank)] = board_.stage_in(rank, c) + static_cast<std::size_t>(rank_) * width;
    }
    combine(static_cast<std::byte*>(reduction.out) + at, bytes / element);
  };
  exchange_chunks(board_, rank_, size_, collective.chunk_base(), chunks, true, true, collective.watch(), fill, drain);
  collective.chunks_done(chunks);
}

}  // namespace cohort::shm
