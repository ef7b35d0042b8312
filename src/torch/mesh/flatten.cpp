// SPDX-License-Identifier: BSD-3-Clause
//
// Merging the dimensions of a mesh, and dividing one.
#include <cohort/error.h>
#include <cohort/torch/mesh.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <utility>

#include "torch/mesh/check.h"
#include "torch/mesh/groups.h"
#include "torch/mesh/state.h"

namespace cohort {

namespace {

using detail::MeshAxis;
using detail::MeshState;

bool is_default(const MeshBackend& backend) {
  return !backend.backend && !backend.options;
}

ProcessGroup& world_of(const MeshState& state, const std::string& call) {
  if (state.root->world == nullptr) {
    throw Error(
        fmt::format("{}: the mesh was made from groups, and no group with all its ranks is known over which to "
                    "make others: give `world` to from_group",
                    call));
  }
  return *state.root->world;
}

/// Calls `check`, and compares with the other ranks' calls what it says.
void check_together(ProcessGroup& world, const std::string& call, const std::function<void()>& check) {
  std::exception_ptr refused;
  try {
    check();
  } catch (const Error&) {
    refused = std::current_exception();
  }
  detail::compare_calls(world, call, refused);
}

void check_new_name(const MeshState& state, const std::string& name) {
  for (const auto* const names : {&state.root->names, &state.names}) {
    if (std::find(names->begin(), names->end(), name) == names->end()) continue;
    throw ValueError(fmt::format("flatten: \"{}\" is a dimension of the mesh already", name));
  }
}

/// The dimensions that `dim` is divided into, without groups.
std::vector<MeshAxis> divide_axis(const MeshState& state, std::size_t dim, const std::vector<std::int64_t>& sizes,
                                  const std::vector<std::string>& names) {
  const auto& axis = state.axes[dim];
  const auto is_wrong = [](std::int64_t size) { return size < 1; };
  if (sizes.empty() || std::ranges::any_of(sizes, is_wrong) ||
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()) != std::ssize(axis.offsets)) {
    throw ValueError(fmt::format("unflatten: {} is not the size of dimension {}, {}", fmt::join(sizes, " x "), dim,
                                 axis.offsets.size()));
  }
  const bool is_alone = state.axes.size() == 1;
  if (names.size() != sizes.size() && !(names.empty() && state.names.empty())) {
    throw Error(fmt::format("unflatten: {} names for {} dimensions: give one for each", names.size(), sizes.size()));
  }
  if (!names.empty() && state.names.empty() && !is_alone) {
    throw Error("unflatten: names for the new dimensions, but the others have none");
  }
  auto all_names = state.names;
  std::erase(all_names, axis.name);
  all_names.insert(all_names.end(), names.begin(), names.end());
  detail::check_names(all_names, all_names.size());

  auto offsets = detail::divided(axis.offsets, sizes);
  if (!offsets) {
    throw ValueError(fmt::format("unflatten: dimension {} was flattened from dimensions of other sizes than {}", dim,
                                 fmt::join(sizes, " x ")));
  }
  std::vector<MeshAxis> parts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    MeshAxis part{.name = names.empty() ? "" : names[i], .offsets = std::move((*offsets)[i])};
    part.index = detail::own_index(*state.root, part.offsets);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

DeviceMesh DeviceMesh::flatten(std::string name, const MeshBackend& backend) const {
  const auto& state = MeshAccess::state(*this);
  if (ndim() == 1 && is_default(backend) && (name.empty() || (!state.names.empty() && name == state.names[0]))) {
    return *this;
  }
  if (name.empty()) {
    if (state.names.empty()) throw Error("flatten: the dimensions have no names: give one for the new dimension");
    name = fmt::format("{}", fmt::join(state.names, "_"));
  }
  MeshAxis axis{.name = name, .offsets = detail::merged(detail::offsets_of(state.axes))};
  const auto* const before = detail::find_flattened(*state.root, name);
  if (before != nullptr && before->offsets == axis.offsets) return MeshAccess::make(state.root, {*before});

  const auto call =
      fmt::format("flatten({}{}) of {} ({}), {} of {} ranks", name, detail::to_text(backend),
                  fmt::join(state.names, ", "), fmt::join(state.shape, " x "), state.size, state.root->ranks.size());
  auto& world = world_of(state, call);
  check_together(world, call, [&] {
    check_new_name(state, name);
    if (before != nullptr) throw ValueError(fmt::format("flatten: \"{}\" is another flattened dimension", name));
    detail::check_override(backend, world);
  });
  axis.index = detail::own_index(*state.root, axis.offsets);
  if (ndim() == 1 && is_default(backend)) {
    axis.group = state.axes[0].group;
  } else {
    detail::make_group(*state.root, axis, 0, backend);
  }
  {
    const std::lock_guard lock(state.root->mutex);
    state.root->flattened.emplace(name, axis);
  }
  return MeshAccess::make(state.root, {std::move(axis)});
}

DeviceMesh DeviceMesh::unflatten(const MeshDim& dim, const std::vector<std::int64_t>& sizes,
                                 std::vector<std::string> names, const MeshBackends& backend_override) const {
  const auto& state = MeshAccess::state(*this);
  const auto* const dim_name = std::get_if<std::string>(&dim);
  const auto call = fmt::format("unflatten({}, {{{}}}, {{{}}}{}) of {} ({})",
                                dim_name != nullptr ? *dim_name : std::to_string(std::get<std::int64_t>(dim)),
                                fmt::join(sizes, ", "), fmt::join(names, ", "), detail::to_text(backend_override),
                                fmt::join(state.names, ", "), fmt::join(state.shape, " x "));
  auto& world = world_of(state, call);
  std::size_t index = 0;
  std::vector<MeshAxis> parts;
  std::vector<MeshBackend> overrides;
  check_together(world, call, [&] {
    index = index_of(dim_name != nullptr ? this->dim(*dim_name) : std::get<std::int64_t>(dim));
    parts = divide_axis(state, index, sizes, names);
    overrides = detail::overrides_by_index(backend_override, names, parts.size(), world);
  });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_default(overrides[i]) && parts[i].offsets == state.axes[index].offsets) {
      parts[i].group = state.axes[index].group;
    } else {
      detail::make_group(*state.root, parts[i], index + i, overrides[i]);
    }
  }
  auto axes = state.axes;
  const auto place = axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(index));
  axes.insert(place, std::make_move_iterator(parts.begin()), std::make_move_iterator(parts.end()));
  return MeshAccess::make(state.root, std::move(axes));
}

}  // namespace cohort
