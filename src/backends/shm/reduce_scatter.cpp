// SPDX-License-Identifier: BSD-3-Clause
//
// Reduce-scatter: rank r gets the r-th inputs of all ranks, combined in rank order.
//
//   direct   every input lies in memory of the group: rank r combines all of them in place.     S read, S/n written
//   staged   each rank copies the others' parts in, chunk by chunk.         (n-1)/n S copied in, S read, S/n written
//
// There is no small form: the post holds the table of lanes, so staging adds only one wait to what a small form needs.
#include <fmt/format.h>

#include <array>

#include "backends/shm/backend.h"
#include "backends/shm/exchange.h"
#include "backends/shm/pipeline.h"
#include "backends/shm/tuning.h"
#include "core/rank_index.h"
#include "reduce/copy.h"
#include "reduce/kernels.h"

namespace cohort::shm {

void LocalBackend::reduce_scatter(const Operation& op, Call& call) {
  const auto& ins = op.ins;
  const auto output = op.out();
  Collective collective(engine_, op, call);
  const auto lanes = index_of(size());
  LaneTables tables(engine_, collective, lanes);
  const bool is_reachable = tables.write(ins);
  collective.publish(is_reachable, op.reduce.factor());
  collective.await_all();

  std::array<double, most_ranks> factors;
  std::uint64_t longest = 0;
  for (int each = 0; each < size(); ++each) {
    factors[index_of(each)] = collective.number_of(each);
    for (int to = 0; to < size(); ++to) longest = std::max(longest, tables.lane(each, to).bytes);
    if (const auto offered = tables.lane(each, rank()).bytes; offered != output.size()) {
      collective.mismatch(each, fmt::format("rank {} gives {} bytes for rank {}, which expects {}", each, offered,
                                            rank(), output.size()));
    }
  }

  const auto kernel = reduce::find_kernel(op.dtype, op.reduce.kind());
  std::array<const void*, most_ranks> sources;
  const auto combine = [&](void* out, std::size_t elements) {
    if (elements == 0) return;
    kernel({.data = sources.data(), .factors = factors.data(), .count = lanes}, {.data = &out, .count = 1}, elements,
           static_cast<double>(size()));
  };
  const auto* const own = ins[index_of(rank())].data();

  if (collective.all_reachable()) {
    for (int each = 0; each < size(); ++each) {
      sources[index_of(each)] = collective.find(each, tables.lane(each, rank()).location, output.size());
    }
    combine(output.data(), op.count_of(output));
    collective.meet();
    return;
  }

  collective.need_stage();
  const auto& board = engine_.board();
  const auto element = size_of(op.dtype);
  const auto width = lane_width(lanes, reduce_chunk(longest * lanes, size()));
  const auto chunks = static_cast<std::uint32_t>((longest + width - 1) / width);
  const auto part = [&](std::size_t bytes, std::uint32_t c) {
    const auto at = std::min<std::size_t>(bytes, c * width);
    return std::pair(at, std::min(width, bytes - at));
  };
  const auto fill = [&](std::uint32_t c) {
    auto* const to = board.stage_in(rank(), c);
    for (std::size_t i = 0; i < lanes; ++i) {
      if (static_cast<int>(i) == rank()) continue;
      const auto [at, bytes] = part(ins[i].size(), c);
      reduce::copy(to + i * width, ins[i].data() + at, bytes);
    }
  };
  const auto drain = [&](std::uint32_t c, const auto& await_filled) {
    const auto [at, bytes] = part(output.size(), c);
    for (int each = 0; each < size(); ++each) {
      if (each == rank()) {
        sources[index_of(each)] = own + at;
        continue;
      }
      await_filled(each);
      sources[index_of(each)] = board.stage_in(each, c) + index_of(rank()) * width;
    }
    combine(output.data() + at, bytes / element);
  };
  exchange_chunks(board, rank(), size(), collective.chunk_base(), chunks, true, true, collective.monitor(), fill,
                  drain);
  collective.chunks_done(chunks);
}

}  // namespace cohort::shm
