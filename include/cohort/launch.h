// SPDX-License-Identifier: BSD-3-Clause
//
// Which launcher started this process, and as which rank of how many, read from the variables that launchers set.
//
//   const auto launch = cohort::find_launch(cohort::Env::read());
//   if (launch) std::cout << launch->rank << " of " << launch->size << ", by " << to_string(launch->launcher);
//
// The launchers are tried in this order: cohort run and torchrun (RANK, WORLD_SIZE, ...), Open MPI (OMPI_COMM_WORLD_*),
// MPICH and other PMI launchers (PMI_*, PALS_*), SLURM (SLURM_*, only in a step that srun started). On Kubernetes RANK
// and WORLD_SIZE may count pods; a pod that is to run several processes needs `cohort run` inside it, and the error
// says so.
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
  /// The name of the job on this host or in this cluster; empty if the launcher gives none.
  std::string job{};
  int restart_count = 0;
  /// How many processes have had this rank before, under `cohort run --keep-going`. If it is not 0, the process is a
  /// replacement, for join_group() (new_group.h).
  int replacement = 0;
  /// MASTER_ADDR and MASTER_PORT, if they are set; under SLURM the address is the step's first host by default.
  std::string master_addr{};
  std::optional<std::uint16_t> master_port{};
  /// The variable that each of the fields above came from, for `cohort doctor` and for errors.
  std::map<std::string, std::string, std::less<>> found_in{};
};

/// Returns nullopt if no launcher's variables are set. Throws a ValueError that names the variable if one is malformed,
/// out of range or missing beside another (RANK without WORLD_SIZE).
COHORT_API std::optional<Launch> find_launch(const Env& env);

}  // namespace cohort
