// SPDX-License-Identifier: BSD-3-Clause
//
// Barrier: every rank posts and waits for the posts of all others, at the cost of one cache line per rank.
#include "backends/shm/backend.h"
#include "backends/shm/collectives/collective.h"

namespace cohort::shm {

void LocalBackend::barrier(const Operation& op, Call& call) {
  Collective collective(engine_, op, call);
  collective.post();
  collective.await_all();
}

}  // namespace cohort::shm
