// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

namespace cohort::hybrid {

/// "hybrid"; option: engine ("gloo" or "mpi"; else COHORT_ENGINE, else gloo).
ProcessGroupPtr make_hybrid_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options);
/// "auto": shm if all ranks are on one host, hybrid if they are not, nccl for CUDA devices. Says in the log which.
ProcessGroupPtr make_auto_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                const Device& device, const Options& options);

}  // namespace cohort::hybrid
