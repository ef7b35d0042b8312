// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include <string>

#include "backends/nccl/engine_interface.h"

namespace cohort::nccl {

/// The communicator is connected when this returns. `engine` is that of the process, or a test double.
ProcessGroupPtr make_group(const Engine& engine, const StorePtr& store, int rank, int size,
                           std::chrono::milliseconds timeout, const Device& device, const Options& options);

/// Uses the engine of this process.
ProcessGroupPtr make_system_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                  const Device& device, const Options& options);
/// What this machine lacks for this backend; empty if nothing.
std::string missing();

}  // namespace cohort::nccl
