// SPDX-License-Identifier: BSD-3-Clause
//
// Making process groups, and the backends to make them with.
//
//   auto pg = cohort::new_group("shm", 30s, "cpu");                       // started by `cohort run`: env:// rendezvous
//   auto both = cohort::new_group("cpu:shm,cuda:nccl", 60s, "cuda:0");    // one backend per device type
//   auto own = cohort::new_group("thread", 5s, "cpu", {}, {.store = store, .rank = r, .size = n});
//
//   cohort::register_backend("mine", factory);                                 // backend.h has an example
//
// Built in (docs/backends.md says what each supports):
// ```text
//   auto    shm on one host, hybrid on several, nccl for CUDA devices; option engine, as for hybrid
//   shm     processes on one host, through shared memory
//   thread  ranks are threads of one process
//   hybrid  several hosts: shared memory inside, an engine between; option engine ("gloo", the default, or "mpi")
//   gloo    several hosts, over TCP; no options
//   mpi     under mpirun or srun, through Open MPI or MPICH; no options (docs/engines-mpi.md)
//   nccl    CUDA devices; options in docs/engines-nccl.md
//   fake    any rank of any size, without peers; options: error_on_collective, simulate_uniform_ranks (booleans)
// ```
#pragma once

#include <cohort/device.h>
#include <cohort/export.h>
#include <cohort/options.h>
#include <cohort/process_group.h>
#include <cohort/store.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// Makes this rank's part of a group. The store is this group's own.
using ProcessGroupFactory = std::function<ProcessGroupPtr(
    StorePtr store, int rank, int size, std::chrono::milliseconds timeout, Device device, const Options& options)>;

/// Adds a backend for the whole process. A name that is taken is a ValueError.
COHORT_API void register_backend(std::string name, ProcessGroupFactory factory);
/// Names of all backends that new_group can make here, sorted.
COHORT_API std::vector<std::string> backend_names();

/// Who this process is, where the environment is not to be asked: all three, or none.
struct GroupMembers {
  StorePtr store{};
  std::optional<int> rank{};
  std::optional<int> size{};
  /// Tells concurrent creations of one rank apart; all ranks give the same.
  std::string name{};
};

/// All ranks call it, in the same order, and it returns when all have; `timeout` bounds that, and is the group's
/// timeout afterwards. An unknown backend is a ValueError before anything else happens. The group has keys of its own
/// in the store, so several groups may share one.
COHORT_API ProcessGroupPtr new_group(std::string_view backend, std::chrono::milliseconds timeout, const Device& device,
                                     const Options& options = {}, const GroupMembers& members = {});

}  // namespace cohort
