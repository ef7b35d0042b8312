// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

namespace cohort::mpi {

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options);

/// Which packages to install if this build has no module for any MPI; empty if it has one. Loads nothing.
std::string missing();

}  // namespace cohort::mpi
