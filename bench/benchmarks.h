// SPDX-License-Identifier: BSD-3-Clause
//
// The parts of store_bench and group_bench. Each of them has its flags, starts the processes it needs, takes turns with
// its peer where there is one, prints its figures, and leaves nothing running.
#pragma once

#include "program.h"

namespace cohort::benchmarks {

// store_bench

/// The memory that an idle connection takes in the server.
void add_memory(Program& program);
/// A client's set and get, compared with a bare echo of the same size.
void add_round_trip(Program& program);
/// Operations per second of many clients, compared with PyTorch's TCPStore.
void add_throughput(Program& program);
/// From the start of a server to the first answer to clients that were already waiting for it.
void add_join(Program& program);
/// From the start signal until every connection is made, authenticated and has passed a barrier.
void add_storm(Program& program);

// group_bench

/// From the call of new_group to its return on the slowest rank, compared with PyTorch's gloo process group.
void add_new_group(Program& program);
/// A computation during an asynchronous all_reduce, compared with the longer of the two by itself.
void add_overlap(Program& program);
/// A large all_reduce on memory of the group, compared with moving the same bytes without synchronisation.
void add_bandwidth(Program& program);
/// The parts of a small collective's time, for two processes with a core each.
void add_call_cost(Program& program);

}  // namespace cohort::benchmarks
