// SPDX-License-Identifier: BSD-3-Clause
//
// Makes the process groups of meshes: first the ranks compare their calls, so that they disagree before anything is
// made, and then all groups of a dimension are made in one step.
#pragma once

#include <cohort/torch/mesh.h>

#include <exception>
#include <string>
#include <vector>

#include "torch/mesh/state.h"

namespace cohort::detail {

/// Throws on every rank unless all ranks of the group made the same call. `refused` is why this rank cannot make its
/// own, null if it can; that is also thrown, after the others have been told.
void compare_calls(ProcessGroup& world, const std::string& call, const std::exception_ptr& refused);

/// The overrides by index. Throws Error if they do not fit the dimensions.
std::vector<MeshBackend> overrides_by_index(const MeshBackends& given, const std::vector<std::string>& names,
                                            std::size_t ndim, const ProcessGroup& world);
/// The same for one dimension.
void check_override(const MeshBackend& given, const ProcessGroup& world);
/// For messages and for comparing calls: "", or ", tp: gloo".
std::string to_text(const MeshBackends& overrides);
std::string to_text(const MeshBackend& override);

/// Gives the dimension this rank's group. Called by all ranks of the world; `number` is the dimension's, for its
/// description if it has no name.
void make_group(const MeshRoot& root, MeshAxis& axis, std::size_t number, const MeshBackend& backend);

}  // namespace cohort::detail
