// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

namespace cohort::hybrid {

/// Backend "hybrid". Option `engine`: "gloo" or "mpi"; the default is COHORT_ENGINE or, if that is not set, gloo.
ProcessGroupPtr make_hybrid_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options);
/// Backend "auto": shm if all ranks are on one host, hybrid if they are not, nccl for CUDA devices. Logs which one it
/// chose.
ProcessGroupPtr make_auto_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                const Device& device, const Options& options);

/// What "auto" would choose here: a backend, or "none: " and the reason.
struct AutoChoices {
  std::string one_host{};
  std::string several_hosts{};
  std::string cuda{};
};
AutoChoices choices_of_auto();

}  // namespace cohort::hybrid
