// SPDX-License-Identifier: BSD-3-Clause
//
// Who started this process, and as which rank of how many: read from the variables that launchers set.
//
//   const auto launch = cohort::find_launch(cohort::Env::read());
//   if (launch) std::cout << launch->rank << " of " << launch->size << ", by " << to_string(launch->launcher);
//
// In order: cohort run and torchrun (RANK, WORLD_SIZE, ...), Open MPI (OMPI_COMM_WORLD_*), MPICH and other PMI
// launchers (PMI_*, PALS_*), SLURM (SLURM_*, only in a step that srun started). On Kubernetes RANK and WORLD_SIZE may
// count pods; a pod that is to run several processes needs `cohort run` inside it, and the error says so.
#pragma once

#include <cohort/env.h>
#include <cohort/export.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

enum class Launcher : std::uint8_t { by_hand, cohort, torchrun, open_mpi, pmi, slurm };

COHORT_API std::string_view to_string(Launcher launcher);

struct Launch {
  Launcher launcher = Launcher::by_hand;
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank{};
  std::optional<int> local_size{};
  std::optional<int> node{};
  /// Names the job on this host or in this cluster, as far as the launcher says; may be empty.
  std::string job{};
  int restart_count = 0;
  /// Host and port of rank 0 as given; SLURM's first host where MASTER_ADDR is not set. May be missing.
  std::string master_addr{};
  std::optional<std::uint16_t> master_port{};
  /// Which variable each of the above came from, for `cohort doctor` and for errors.
  std::map<std::string, std::string, std::less<>> found_in{};
};

/// Nothing: no launcher's variables are set. A ValueError names what is set but malformed, out of range or incomplete
/// (RANK without WORLD_SIZE).
COHORT_API std::optional<Launch> find_launch(const Env& env);

/// The first host of a SLURM node list: "node[07-09,12],login1" → "node07". A ValueError if it is malformed.
COHORT_API std::string first_slurm_host(std::string_view node_list);
/// How many tasks SLURM puts on a node: "2(x3),1" → 2, 2, 2, 1. A ValueError if malformed or there is no such node.
COHORT_API int slurm_tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace cohort
