// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

namespace cohort::mpi {

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options);

/// Says which packages to install if this build has no module for any MPI; else empty. Loads nothing.
std::string missing();

}  // namespace cohort::mpi
