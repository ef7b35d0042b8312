// SPDX-License-Identifier: BSD-3-Clause
//
// All-to-all: an exchange (exchange.h) in which each rank has one lane for every other rank.
#include "backends/shm/backend.h"
#include "backends/shm/exchange.h"
#include "core/rank_index.h"

namespace cohort::shm {

void LocalBackend::all_to_all(const Operation& op, Call& call) {
  const auto& ins = op.ins;
  const auto& outs = op.outs;

  Collective collective(engine_, op, call);
  const auto own = index_of(rank());
  copy_own(outs[own], ins[own]);
  Exchange exchange(engine_, collective, ins, index_of(size()), outs);
  exchange.post();
  // Only the two ranks of a piece know its size, which no signature covers. If they disagree, the others must not leave
  // before they know it: they meet those that found no fault.
  if (!exchange.move()) collective.meet();
}

}  // namespace cohort::shm
