// SPDX-License-Identifier: BSD-3-Clause
//
// Checks of what describes a mesh.
#pragma once

#include <cohort/torch/mesh.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cohort::detail {

/// Throws AssertionError if a rank is given twice, and ValueError if there is none.
void check_mesh_ranks(const RankArray& array);
/// Throws Error unless the names are none, or unique and as many as the dimensions.
void check_names(const std::vector<std::string>& names, std::size_t ndim);
/// Throws Error unless it is a device type without an index.
void check_device_type(const std::string& device_type);
/// Throws Error if the group has no backend for it.
void check_device_type_of(const std::string& device_type, const ProcessGroup& group);

}  // namespace cohort::detail
