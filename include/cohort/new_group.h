// SPDX-License-Identifier: BSD-3-Clause
//
// Creates process groups, and registers backends for them.
//
//   auto pg = cohort::new_group("shm", 30s, "cpu");                       // env:// rendezvous: what `cohort run` set;
//                                                                         // started alone: a group of one
//   auto both = cohort::new_group("cpu:shm,cuda:nccl", 60s, "cuda:0");    // one backend per device type
//   auto own = cohort::new_group("thread", 5s, "cpu", {}, {.store = store, .rank = r, .size = n});
//
//   cohort::register_backend("mine", factory);                                 // backend.h has an example
//
// A process that replaces one that died, as `cohort run --keep-going --max-restarts` starts it, does not make the group
// but joins it:
//
//   const auto launch = cohort::find_launch(cohort::Env::read());
//   auto pg = launch && launch->replacement > 0 ? cohort::join_group("auto", 60s, "cpu")
//                                               : cohort::new_group("auto", 60s, "cpu");
//
// Built-in backends (docs/backends.md lists what each one supports):
// ```text
//   auto    shm on one host, hybrid on several hosts, nccl for CUDA devices; option: engine, as for hybrid
//   shm     processes on one host, through shared memory
//   thread  ranks that are threads of one process
//   hybrid  several hosts: shared memory within a host, an engine between hosts; option: engine ("gloo" or "mpi";
//           default: "gloo")
//   gloo    several hosts, over TCP; no options
//   mpi     under mpirun or srun, through Open MPI or MPICH; no options (docs/engines-mpi.md)
//   nccl    CUDA devices; options in docs/engines-nccl.md
//   fake    one rank of a group of any size, without peers; options: error_on_collective, simulate_uniform_ranks
//           (booleans)
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

/// Makes this rank's part of a group. No other group uses the keys of the store that it is given.
using ProcessGroupFactory = std::function<ProcessGroupPtr(
    StorePtr store, int rank, int size, std::chrono::milliseconds timeout, Device device, const Options& options)>;

/// Adds a backend for the whole process. Throws ValueError if the name is taken.
COHORT_API void register_backend(std::string name, ProcessGroupFactory factory);
/// The sorted names of all backends that new_group can use on this machine.
COHORT_API std::vector<std::string> backend_names();

/// The store, rank and size to use instead of those in the environment. Give all three or none.
struct GroupMembers {
  StorePtr store{};
  std::optional<int> rank{};
  std::optional<int> size{};
  /// Distinguishes groups that one rank creates concurrently. All ranks give the same name.
  std::string name{};
};

/// Called by all ranks, in the same order; returns when all have called it. `timeout` bounds this wait and becomes the
/// group's. Throws ValueError at once if the backend is unknown. If a rank dies meanwhile, all ranks fail or none does
/// on shm and thread; for the others see docs/faults.md. Every group has its own keys, so several may share a store.
COHORT_API ProcessGroupPtr new_group(std::string_view backend, std::chrono::milliseconds timeout, const Device& device,
                                     const Options& options = {}, const GroupMembers& members = {});

/// Joins a group that other processes have made with new_group() and with the same arguments. Returns when they have
/// called ProcessGroup::grow(), or throws OperationTimeoutError after `timeout`. The rank (RANK, or members.rank) is
/// the global rank that the new member asks for, usually that of a lost one; it is refused with a ValueError if a
/// member of the group holds it. members.size is not used. members.name, "" by default, is that of the group; if
/// several groups of one name exist, the first to call grow() takes the newcomer. In a replacement that "cohort run"
/// has started for a rank that died before there was any group, it is new_group().
COHORT_API ProcessGroupPtr join_group(std::string_view backend, std::chrono::milliseconds timeout, const Device& device,
                                      const Options& options = {}, const GroupMembers& members = {});

}  // namespace cohort
