// SPDX-License-Identifier: BSD-3-Clause
//
// The parts of store_bench. Each of them starts the processes it needs, takes turns with its peer where there is one,
// adds its rows to the report, and leaves nothing running.
#pragma once

#include <cstddef>

#include "measure/report.h"

namespace cohort::bench {

/// A client's set and get, compared with a bare echo of the same size.
struct RoundTripOptions {
  int rounds = 60;
  int operations = 200;  ///< per figure and round
};
void measure_round_trip(const RoundTripOptions& options, Report& report);

/// Operations per second of many clients, compared with PyTorch's TCPStore.
struct ThroughputOptions {
  int rounds = 9;
  int clients = 16;
  int milliseconds = 120;  ///< per figure and round
};
void measure_throughput(const ThroughputOptions& options, Report& report);

/// From the start of a server to the first answer to clients that were already waiting for it.
struct JoinOptions {
  int rounds = 8;
  int clients = 4;
};
void measure_join(const JoinOptions& options, Report& report);

/// From the start signal until every connection is made, authenticated and has passed a barrier.
struct StormOptions {
  int rounds = 3;
  int processes = 16;
  int connections = 250;  ///< of each process
};
void measure_storm(const StormOptions& options, Report& report);

/// The memory that an idle connection takes in the server.
struct MemoryOptions {
  int connections = 4000;
};
void measure_memory(const MemoryOptions& options, Report& report);

}  // namespace cohort::bench
