// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

#include "backends/common/failure.h"

namespace cohort::shm {

/// The backend without the layers around it, for ranks of one host; it may be a part of another backend (hybrid).
BackendPtr make_part(bool are_threads, const StorePtr& store, const std::string& group, int rank, int size,
                     Deadline deadline, const FailureCheck& failure_check);

ProcessGroupPtr make_shm_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                               const Device& device, const Options& options);
ProcessGroupPtr make_thread_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options);

}  // namespace cohort::shm
