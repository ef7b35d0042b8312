// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes of some dimensions of other meshes. Nothing is communicated.
#include <cohort/error.h>
#include <cohort/torch/mesh.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "torch/mesh/check.h"
#include "torch/mesh/state.h"

namespace cohort {

namespace {

using detail::MeshAxis;
using detail::Offsets;

Offsets sorted(Offsets offsets) {
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

/// The index of the first of these dimensions that `flattened` was merged from; nullopt if it has ranks outside them.
std::optional<std::size_t> place_among(const std::vector<MeshAxis>& axes, const MeshAxis& flattened) {
  const auto all = sorted(detail::merged(detail::offsets_of(axes)));
  const auto part = sorted(flattened.offsets);
  if (!std::includes(all.begin(), all.end(), part.begin(), part.end())) return std::nullopt;
  for (std::size_t dim = 0; dim < axes.size(); ++dim) {
    if (axes[dim].offsets.size() > 1 && std::binary_search(part.begin(), part.end(), axes[dim].offsets[1])) return dim;
  }
  return axes.size();
}

void check_disjoint(const std::vector<MeshAxis>& axes, std::string_view what) {
  if (detail::are_disjoint(detail::offsets_of(axes))) return;
  std::vector<std::string_view> names;
  names.reserve(axes.size());
  for (const auto& axis : axes) names.emplace_back(axis.name);
  throw Error(fmt::format("{}: the dimensions {} share ranks", what, fmt::join(names, ", ")));
}

}  // namespace

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  const auto& state = MeshAccess::state(*this);
  if (state.names.empty()) {
    throw Error(fmt::format("{} cannot be sliced: its dimensions have no names", to_string(*this)));
  }
  if (names == state.names) return *this;
  if (names.empty()) throw KeyError(fmt::format("a slice of {} without dimensions", to_string(*this)));
  detail::check_names(names, names.size());

  std::vector<MeshAxis> chosen;
  std::vector<std::size_t> places;
  for (const auto& name : names) {
    const auto own = std::find(state.names.begin(), state.names.end(), name);
    const auto* const flattened = own == state.names.end() ? detail::find_flattened(*state.root, name) : &state.axes[0];
    const auto place = own != state.names.end() ? std::optional(static_cast<std::size_t>(own - state.names.begin()))
                       : flattened != nullptr   ? place_among(state.axes, *flattened)
                                                : std::nullopt;
    if (!place) {
      throw KeyError(
          fmt::format("{} has no dimension \"{}\", and none was flattened under that name", to_string(*this), name));
    }
    chosen.push_back(own != state.names.end() ? state.axes[*place] : *flattened);
    places.push_back(*place);
  }
  check_disjoint(chosen, "a slice of a mesh");
  if (!std::is_sorted(places.begin(), places.end())) {
    throw KeyError(
        fmt::format("the dimensions {} are not in the order of {}", fmt::join(names, ", "), to_string(*this)));
  }
  return MeshAccess::make(state.root, std::move(chosen));
}

DeviceMesh DeviceMesh::concatenate(const std::vector<DeviceMesh>& meshes) {
  if (meshes.empty()) throw ValueError("DeviceMesh::concatenate: no meshes given");
  const auto& root = MeshAccess::state(meshes.front()).root;
  std::vector<MeshAxis> axes;
  std::vector<std::string> names;
  for (const auto& mesh : meshes) {
    const auto& state = MeshAccess::state(mesh);
    if (state.root != root) {
      throw Error(fmt::format("DeviceMesh::concatenate: {} and {} were not sliced from the same mesh",
                              to_string(meshes.front()), to_string(mesh)));
    }
    axes.insert(axes.end(), state.axes.begin(), state.axes.end());
    names.insert(names.end(), state.names.begin(), state.names.end());
  }
  detail::check_names(names, axes.size());
  check_disjoint(axes, "DeviceMesh::concatenate");
  return MeshAccess::make(root, std::move(axes));
}

}  // namespace cohort
