// SPDX-License-Identifier: BSD-3-Clause
//
// The ranks of a group tell each other, through the store, which processes of MPI_COMM_WORLD they are.
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
  double quota = 0;  ///< limit on processor time, in CPUs; 0: no limit
  std::string host{};
  std::string version{};
  cpu_set_t cpus{};

  static ProcessInfo of_this_process(Library& library);
};

std::string encode(const ProcessInfo& info);
/// Throws a BackendError if the text is not an encoded ProcessInfo.
ProcessInfo decode_process_info(const std::string& text);

/// Returns what all ranks have written, in rank order. Throws an OperationTimeoutError that names a rank that did not
/// join.
std::vector<ProcessInfo> exchange_process_info(Store& store, const ProcessInfo& self, int rank, int size,
                                               const std::string& group, Deadline deadline);

/// Throws a BackendError unless they are different processes of one MPI_COMM_WORLD.
std::vector<int> world_ranks_of(const std::vector<ProcessInfo>& all, const std::string& group);

/// Whether each of the ranks on this host has a processor of its own.
bool have_own_cpus(const std::vector<ProcessInfo>& all, const std::string& host);

}  // namespace cohort::mpi
