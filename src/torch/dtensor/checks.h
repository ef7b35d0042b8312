// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/mesh.h>
#include <cohort/torch/placement.h>

#include <cstdint>
#include <string_view>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// A layout for a tensor of `dims` dimensions: missing placements are Replicate, and negative dimensions are counted
/// from the last. Throws ValueError unless there is one placement for each mesh dimension, and IndexError for a
/// dimension that the tensor does not have. `who` is the function for the message.
LayoutPtr checked_layout(const DeviceMesh& mesh, Placements placements, std::int64_t dims, std::string_view who);

}  // namespace cohort::dtensor
