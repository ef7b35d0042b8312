// SPDX-License-Identifier: BSD-3-Clause
//
// The backends that come with the library.
#include "backends/fake/backend.h"
#include "backends/gloo/factory.h"
#include "backends/hybrid/factory.h"
#include "backends/mpi/factory.h"
#include "backends/nccl/factory.h"
#include "backends/shm/factory.h"
#include "group/factories.h"

namespace cohort {

KnownBackends builtin_backends() {
  return {{"auto", {.factory = hybrid::make_auto_group}},
          {"fake", {.factory = fake::make_group}},
          {"gloo", {.factory = gloo::make_group, .missing = gloo::what_is_missing}},
          {"hybrid", {.factory = hybrid::make_hybrid_group}},
          {"mpi", {.factory = mpi::make_group, .missing = mpi::missing}},
          {"nccl", {.factory = nccl::make_system_group, .missing = nccl::missing}},
          {"shm", {.factory = shm::make_shm_group}},
          {"thread", {.factory = shm::make_thread_group}}};
}

}  // namespace cohort
