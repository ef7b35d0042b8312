// SPDX-License-Identifier: BSD-3-Clause
//
// The ranks of a group tell each other, through the store, which processes of MPI's world they are.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store.h>

#include <sched.h>

#include <string>
#include <vector>

#include "backends/mpi/engine_interface.h"

namespace cohort::mpi {

struct ProcessInfo {
  int world_rank = 0;
  int world_size = 1;
  double quota = 0;  ///< CPUs' worth of time; 0: no limit
  std::string host{};
  std::string version{};
  cpu_set_t cpus{};

  static ProcessInfo of_this_process(Library& library);
};

std::string encode(const ProcessInfo& info);
/// A BackendError if it is none.
ProcessInfo decode_process_info(const std::string& text);

/// Everybody's, in the order of the ranks. An OperationTimeoutError names a rank that did not come.
std::vector<ProcessInfo> meet(Store& store, const ProcessInfo& self, int rank, int size, const std::string& group,
                              Deadline deadline);

/// A BackendError if they are not different processes of one world.
std::vector<int> world_ranks_of(const std::vector<ProcessInfo>& all, const std::string& group);

/// Whether each of the ranks on this host has a processor of its own.
bool have_own_cpus(const std::vector<ProcessInfo>& all, const std::string& host);

}  // namespace cohort::mpi
