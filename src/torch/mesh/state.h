// SPDX-License-Identifier: BSD-3-Clause
//
// What is behind a DeviceMesh.
#pragma once

#include <cohort/torch/mesh.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch/mesh/layout.h"

namespace cohort {

namespace detail {

struct MeshState;

/// A dimension of a mesh.
struct MeshAxis {
  std::string name{};  ///< empty: none
  Offsets offsets{};
  std::int64_t index = -1;  ///< this rank's along it; -1 if it is outside the mesh
  ProcessGroupPtr group{};  ///< null if it is outside

  bool operator==(const MeshAxis&) const = default;
};

/// What a mesh shares with all meshes that were sliced, flattened or unflattened from it.
struct MeshRoot {
  std::string device_type{};
  std::vector<int> ranks{};           ///< global ranks, in row-major order
  std::vector<std::string> names{};   ///< of the dimensions with which it was made
  int own_rank = 0;                   ///< this rank, as a global rank
  std::int64_t position = -1;         ///< this rank's in `ranks`; -1: it is not in the mesh
  ProcessGroupPtr world{};            ///< the group that new groups are made over; null: none is known
  std::vector<int> ranks_of_world{};  ///< the mesh's ranks as ranks of `world`

  mutable std::mutex mutex{};  ///< protects the members below
  /// The dimensions that flatten() has made. Entries are never removed or changed. They do not hold the meshes
  /// themselves, which hold this object.
  mutable std::map<std::string, MeshAxis, std::less<>> flattened{};
  /// The meshes that were made from this one, so that making one again gives the same object, and comparing them costs
  /// a comparison of pointers.
  mutable std::vector<std::weak_ptr<const MeshState>> living{};
};
using MeshRootPtr = std::shared_ptr<const MeshRoot>;

struct MeshState final : MeshFacts {
  MeshRootPtr root{};
  std::vector<MeshAxis> axes{};
  std::vector<int> ranks{};  ///< of the copy with this rank; empty if there is none
  std::size_t hash = 0;
};

}  // namespace detail

struct MeshAccess {
  /// The current mesh of this thread; null if it has none.
  static const DeviceMesh* current() noexcept;
  /// A mesh of these dimensions. Local.
  static DeviceMesh make(const detail::MeshRootPtr& root, std::vector<detail::MeshAxis> axes);
  static const detail::MeshState& state(const DeviceMesh& mesh) {
    return static_cast<const detail::MeshState&>(*mesh.facts_);
  }
};

namespace detail {

/// Pointers to the axes' offsets, as the functions of layout.h take them.
std::vector<const Offsets*> offsets_of(const std::vector<MeshAxis>& axes);

/// This rank's index along a dimension of the root; -1 if it is not in the mesh.
std::int64_t own_index(const MeshRoot& root, const Offsets& offsets);

/// The dimension flattened under this name, if there is one. The pointer stays valid as long as the root.
const MeshAxis* find_flattened(const MeshRoot& root, std::string_view name);

}  // namespace detail

}  // namespace cohort
