// SPDX-License-Identifier: BSD-3-Clause
//
// The parts of group_bench. Each of them starts the processes it needs, takes turns with what it is compared to, adds
// its rows to the report, and leaves nothing running.
#pragma once

#include <vector>

#include "measure/report.h"

namespace cohort::bench {

/// From the call of new_group to its return on the slowest rank, compared with PyTorch's gloo process group.
struct NewGroupOptions {
  int rounds = 11;
  std::vector<int> ranks{2, 8, 32};
};
void measure_new_group(const NewGroupOptions& options, Report& report);

/// A computation during an asynchronous all_reduce, compared with the longer of the two by itself.
struct OverlapOptions {
  int rounds = 11;
  int ranks = 2;
};
void measure_overlap(const OverlapOptions& options, Report& report);

/// A large all_reduce on memory of the group, compared with moving the same bytes without synchronisation.
struct BandwidthOptions {
  int rounds = 11;
  std::vector<int> ranks{2, 8};
};
void measure_bandwidth(const BandwidthOptions& options, Report& report);

/// The parts of a small collective's time, for two processes with a core each.
struct CallCostOptions {
  int rounds = 11;
  int repeats = 20000;
};
void measure_call_cost(const CallCostOptions& options, Report& report);

}  // namespace cohort::bench
