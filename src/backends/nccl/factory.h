// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

#include "backends/nccl/engine_interface.h"

namespace cohort::nccl {

/// The communicator is there when it returns. `engine`: of the process, or a double.
ProcessGroupPtr make_group(const Engine& engine, const StorePtr& store, int rank, int size,
                           std::chrono::milliseconds timeout, const Device& device, const Options& options);

/// On the process's own engine.
ProcessGroupPtr make_system_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options);
/// What this machine lacks for it.
std::string missing();

}  // namespace cohort::nccl
