// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

namespace cohort::hybrid {

/// "hybrid"; option: engine ("gloo" or "mpi"; else COHORT_ENGINE, else gloo).
ProcessGroupPtr make_hybrid_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options);
/// "auto": shm if all ranks are on one host, hybrid if they are not, nccl for CUDA devices. Says in the log which.
ProcessGroupPtr make_auto_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                const Device& device, const Options& options);

/// What "auto" would take here: the backend, or "none: " and why not.
struct AutoChoices {
  std::string one_host{};
  std::string several_hosts{};
  std::string cuda{};
};
AutoChoices choices_of_auto();

}  // namespace cohort::hybrid
