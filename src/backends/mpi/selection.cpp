// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/selection.h"

#include <cohort/error.h>

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace cohort::mpi {

namespace {

std::optional<Flavour> flavour_of_launcher(const Env& env) {
  const auto is_set = [&](std::string_view name) { return !env.text(name).empty(); };
  if (is_set("OMPI_COMM_WORLD_SIZE")) return Flavour::openmpi;
  const auto of_slurm = env.text("SLURM_MPI_TYPE");
  if (of_slurm.starts_with("pmix")) return Flavour::openmpi;
  if (of_slurm == "pmi2" || of_slurm.starts_with("cray")) return Flavour::mpich;
  if (is_set("PMI_SIZE") || is_set("PMI_RANK") || is_set("PALS_RANKID")) return Flavour::mpich;
  if (is_set("PMIX_NAMESPACE")) return Flavour::openmpi;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Flavour flavour) {
  return flavour == Flavour::openmpi ? "openmpi" : "mpich";
}
std::string_view title_of(Flavour flavour) {
  return flavour == Flavour::openmpi ? "Open MPI" : "MPICH";
}
std::string_view package_of(Flavour flavour) {
  return flavour == Flavour::openmpi ? "libopenmpi-dev" : "libmpich-dev";
}

std::optional<Flavour> flavour_of_version(std::string_view version) {
  if (version.find("Open MPI") != std::string_view::npos) return Flavour::openmpi;
  for (const std::string_view relative : {"MPICH", "MVAPICH", "Intel(R) MPI", "CRAY MPICH"}) {
    if (version.find(relative) != std::string_view::npos) return Flavour::mpich;
  }
  return std::nullopt;
}

Flavour choose_flavour(const Env& env, std::string_view loaded) {
  const auto wanted = env.text("COHORT_MPI");
  if (!wanted.empty() && wanted != "openmpi" && wanted != "mpich") {
    throw ValueError(fmt::format("COHORT_MPI=\"{}\": openmpi or mpich", wanted));
  }
  if (!loaded.empty()) {
    const auto flavour = flavour_of_version(loaded);
    if (!flavour) throw ValueError(fmt::format("backend mpi knows Open MPI and MPICH; the program uses {}", loaded));
    if (!wanted.empty() && wanted != to_string(*flavour)) {
      throw ValueError(fmt::format("COHORT_MPI={}, but the program itself uses {}", wanted, title_of(*flavour)));
    }
    return *flavour;
  }
  if (!wanted.empty()) return wanted == "openmpi" ? Flavour::openmpi : Flavour::mpich;
  if (const auto flavour = flavour_of_launcher(env)) return *flavour;
  const bool by_cohort = !env.run_id.empty() || !env.store.empty();
  throw ValueError(
      fmt::format("backend mpi needs a program that was started by MPI's own launcher{}: mpirun -n 4 PROGRAM, or srun "
                  "--mpi=pmix -n 4 PROGRAM (Open MPI), srun --mpi=pmi2 -n 4 PROGRAM (MPICH); COHORT_MPI=openmpi or "
                  "COHORT_MPI=mpich says which MPI it is where the environment does not tell",
                  by_cohort ? ", not by cohort run" : ""));
}

std::string loaded_version() {
  using GetVersion = int (*)(char*, int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, "MPI_Get_library_version"));
  if (get == nullptr) return {};
  std::array<char, 16'384> text{};  // more than any MPI_MAX_LIBRARY_VERSION_STRING (Open MPI: 256, MPICH: 8192)
  int length = 0;
  if (get(text.data(), &length) != 0) return {};
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace cohort::mpi
