// SPDX-License-Identifier: BSD-3-Clause
//
// Which MPI this process speaks. It has no choice: the one that is in the process already, else the one whose launcher
// started it, since no MPI understands another's launcher.
#pragma once

#include <cohort/env.h>

#include <optional>
#include <string>
#include <string_view>

namespace cohort::mpi {

enum class Flavour { openmpi, mpich };

/// "openmpi", "mpich": as in COHORT_MPI and in the names of the modules.
std::string_view to_string(Flavour flavour);
/// "Open MPI", "MPICH"
std::string_view title_of(Flavour flavour);
/// What to install to build or use it.
std::string_view package_of(Flavour flavour);

/// By the text of MPI_Get_library_version. Nothing: neither (MPICH's relatives, which share its interface, are MPICH).
std::optional<Flavour> flavour_of_version(std::string_view version);

/// `loaded`: the version of the MPI that the program brought along; empty if it did not. A ValueError says how to start
/// the program when nothing tells.
Flavour choose_flavour(const Env& env, std::string_view loaded);

/// The version of the MPI that is in the process, as far as the loader tells: what the program was linked with.
std::string loaded_version();

}  // namespace cohort::mpi
