// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/deadline.h>

#include <string_view>
#include <vector>

#include "backends/mpi/runtime.h"

namespace cohort::mpi {

/// Called by exactly these ranks of the world; `group` is the same on all and names no other group that is being made.
/// The call itself cannot be given up: it runs on a thread of its own, which stays if the deadline passes.
Communicator create_communicator(Runtime& runtime, const std::vector<int>& world_ranks, std::string_view group,
                                 Deadline deadline);

}  // namespace cohort::mpi
