// SPDX-License-Identifier: BSD-3-Clause
//
// Barrier: everybody posts and waits for everybody's post; one cache line for each rank.
#include "backends/shm/backend.h"
#include "backends/shm/collective.h"

namespace cohort::shm {

void LocalBackend::barrier(const Operation& op, Call& call) {
  Collective collective(engine_, op, call);
  collective.publish();
  collective.await_all();
}

}  // namespace cohort::shm
