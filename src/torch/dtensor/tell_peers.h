// SPDX-License-Identifier: BSD-3-Clause
//
// One rank fails within an operator whose other ranks go on to a collective.
#pragma once

#include <cohort/torch/mesh.h>

#include <cstdint>
#include <exception>
#include <string_view>

namespace cohort::dtensor {

/// Breaks this rank's group of a mesh dimension, so that the peers, who are in its next collective or will be, end with
/// an error that says what happened here: "rank 1 failed within {where}: {error}". A group whose own operation has
/// failed, or that is broken already, has told them.
void tell_peers(const std::exception& error, const DeviceMesh& mesh, std::int64_t mesh_dim, std::string_view where);

}  // namespace cohort::dtensor
