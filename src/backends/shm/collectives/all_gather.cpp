// SPDX-License-Identifier: BSD-3-Clause
//
// All-gather.
//
//   small    each piece goes with its rank's post; the others copy it out.               one wait for each rank
//   larger   an exchange (exchange.h) in which every rank offers one piece to all
#include <fmt/format.h>

#include <algorithm>

#include "backends/shm/backend.h"
#include "backends/shm/collectives/exchange.h"
#include "core/rank_index.h"
#include "reduce/copy.h"

namespace cohort::shm {

void LocalBackend::all_gather(const Operation& op, Call& call) {
  const auto in = op.in();
  const auto& outs = op.outs;
  std::size_t longest = 0;
  for (const auto& out : outs) longest = std::max(longest, out.size());
  Collective collective(engine_, op, call);
  copy_own(outs[index_of(rank())], in);
  if (longest <= post_bytes) {
    reduce::copy(collective.payload(in.size()), in.data(), in.size());
    collective.post({.pieces = {.are = PostedPieces::Are::even, .bytes = static_cast<std::uint32_t>(in.size())}});
    collective.await_all();
    for (int each = 0; each < size(); ++each) {
      const auto out = outs[index_of(each)];
      if (each == rank()) continue;
      // Compared as 32 bits, after which the compiler does not know that the sizes are equal. If it did, it would copy
      // as many bytes as the post says, and the copy could not begin before the post is in this core's cache.
      const auto offered = collective.detail_of(each).pieces.bytes;
      if (offered != static_cast<std::uint32_t>(out.size())) {
        collective.mismatch(
            each, fmt::format("rank {} gives {} bytes where rank {} expects {}", each, offered, rank(), out.size()));
      }
      reduce::copy(out.data(), collective.payload_of(each, out.size()), out.size());
    }
    return;
  }
  Exchange(engine_, collective, {&in, 1}, 1, outs).run();
}

}  // namespace cohort::shm
