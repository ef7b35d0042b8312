// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/new_group.h>

#include "backends/gloo/engine_interface.h"

namespace cohort::gloo {

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options);

/// What is missing for this backend and how to get it; empty if nothing is.
std::string what_is_missing();
/// Null if the module is missing.
MakeMesh module_function();

}  // namespace cohort::gloo
