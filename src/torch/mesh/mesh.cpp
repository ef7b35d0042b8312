// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes and what can be asked of them.
#include <cohort/error.h>
#include <cohort/torch/mesh.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "torch/mesh/state.h"

namespace cohort {

namespace {

using detail::MeshState;

void mix(std::size_t& hash, std::size_t value) {
  hash ^= value + 0x9e3779b97f4a7c15U + (hash << 6U) + (hash >> 2U);
}

std::size_t hash_of(const MeshState& state) {
  std::size_t hash = std::hash<std::string>()(state.device_type);
  for (const auto size : state.shape) mix(hash, static_cast<std::size_t>(size));
  for (const auto& name : state.names) mix(hash, std::hash<std::string>()(name));
  for (const int rank : state.ranks) mix(hash, static_cast<std::size_t>(rank));
  return hash;
}

std::shared_ptr<const MeshState> find_living(const detail::MeshRoot& root, const std::vector<detail::MeshAxis>& axes) {
  std::shared_ptr<const MeshState> found;
  std::erase_if(root.living, [&](const auto& each) {
    auto state = each.lock();
    if (state == nullptr) return true;
    if (state->axes == axes) found = std::move(state);
    return false;
  });
  return found;
}

std::shared_ptr<MeshState> make_state(const detail::MeshRootPtr& root, std::vector<detail::MeshAxis> axes) {
  auto state = std::make_shared<MeshState>();
  state->device_type = root->device_type;
  state->is_member = root->position >= 0;
  auto base = root->position;
  for (const auto& axis : axes) {
    const auto size = std::ssize(axis.offsets);
    state->shape.push_back(size);
    state->size *= size;
    if (!axis.name.empty()) state->names.push_back(axis.name);
    if (!state->is_member) continue;
    state->coordinate.push_back(axis.index);
    state->groups.push_back(axis.group);
    base -= axis.offsets[static_cast<std::size_t>(axis.index)];
  }
  if (state->is_member || state->size == std::ssize(root->ranks)) {
    const auto positions = detail::merged(detail::offsets_of(axes));
    state->ranks.reserve(positions.size());
    for (const auto each : positions) {
      state->ranks.push_back(root->ranks[static_cast<std::size_t>(each + std::max(base, std::int64_t{0}))]);
    }
  }
  state->root = root;
  state->axes = std::move(axes);
  state->hash = hash_of(*state);
  return state;
}

thread_local const MeshScope* innermost_mesh_scope = nullptr;

}  // namespace

DeviceMesh MeshAccess::make(const detail::MeshRootPtr& root, std::vector<detail::MeshAxis> axes) {
  const std::lock_guard lock(root->mutex);
  if (auto same = find_living(*root, axes)) return DeviceMesh(std::move(same));
  std::shared_ptr<const MeshState> state = make_state(root, std::move(axes));
  root->living.emplace_back(state);
  return DeviceMesh(std::move(state));
}

std::vector<const detail::Offsets*> detail::offsets_of(const std::vector<MeshAxis>& axes) {
  std::vector<const Offsets*> all;
  all.reserve(axes.size());
  for (const auto& axis : axes) all.push_back(&axis.offsets);
  return all;
}

std::int64_t detail::own_index(const MeshRoot& root, const Offsets& offsets) {
  return root.position < 0 ? -1 : index_along(offsets, std::ssize(root.ranks), root.position);
}

const detail::MeshAxis* detail::find_flattened(const MeshRoot& root, std::string_view name) {
  const std::lock_guard lock(root.mutex);
  const auto it = root.flattened.find(name);
  return it == root.flattened.end() ? nullptr : &it->second;
}

std::int64_t DeviceMesh::dim(std::string_view name) const {
  const auto& names = dim_names();
  const auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) {
    throw KeyError(fmt::format("{} has no dimension \"{}\"", to_string(*this), name));
  }
  return it - names.begin();
}

RankArray DeviceMesh::ranks() const {
  const auto& state = MeshAccess::state(*this);
  if (state.ranks.empty()) refuse_outside("ranks");
  return {state.shape, state.ranks};
}

int DeviceMesh::rank() const noexcept {
  return MeshAccess::state(*this).root->own_rank;
}

int DeviceMesh::local_rank() const {
  if (ndim() != 1) {
    throw Error(fmt::format("local_rank: {} has {} dimensions: say which", to_string(*this), ndim()));
  }
  return local_rank(0);
}

int DeviceMesh::local_rank(std::int64_t dim) const {
  const auto index = index_of(dim);
  if (!facts_->is_member) refuse_outside("local_rank");
  return static_cast<int>(facts_->coordinate[index]);
}

const ProcessGroupPtr& DeviceMesh::group() const {
  if (ndim() != 1) throw Error(fmt::format("group: {} has {} dimensions: say which", to_string(*this), ndim()));
  return group(0);
}

const ProcessGroupPtr& DeviceMesh::group(std::string_view name) const {
  const auto& names = dim_names();
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return group(it - names.begin());
  const auto* const flattened = detail::find_flattened(*MeshAccess::state(*this).root, name);
  if (flattened == nullptr) {
    throw KeyError(
        fmt::format("{} has no dimension \"{}\", and none was flattened under that name", to_string(*this), name));
  }
  if (!facts_->is_member) refuse_outside("group");
  return flattened->group;
}

void DeviceMesh::refuse_dim(std::int64_t dim) const {
  throw IndexError(fmt::format("{} has no dimension {}", to_string(*this), dim));
}

void DeviceMesh::refuse_outside(std::string_view what) const {
  throw Error(fmt::format("{}: rank {} is not in {}", what, rank(), to_string(*this)));
}

bool DeviceMesh::has_equal_value(const DeviceMesh& other) const noexcept {
  const auto& mine = MeshAccess::state(*this);
  const auto& its = MeshAccess::state(other);
  if (mine.hash != its.hash || mine.device_type != its.device_type || mine.shape != its.shape ||
      mine.names != its.names || mine.ranks != its.ranks) {
    return false;
  }
  if (!mine.ranks.empty()) return true;
  // Outside a sliced mesh there are no ranks to compare, but all its copies.
  return mine.root->ranks == its.root->ranks &&
         std::ranges::equal(mine.axes, its.axes, [](const auto& a, const auto& b) { return a.offsets == b.offsets; });
}

std::size_t DeviceMesh::hash() const noexcept {
  return MeshAccess::state(*this).hash;
}

std::string to_string(const DeviceMesh& mesh) {
  std::string text = fmt::format("DeviceMesh({}, ", mesh.device_type());
  for (std::size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    if (dim > 0) text += mesh.dim_names().empty() ? " x " : ", ";
    if (!mesh.dim_names().empty()) text += fmt::format("{}: ", mesh.dim_names()[dim]);
    text += std::to_string(mesh.shape()[dim]);
  }
  const auto& state = MeshAccess::state(mesh);
  if (!state.ranks.empty()) text += fmt::format(", {}", to_string(mesh.ranks()));
  return text + ")";
}

MeshScope::MeshScope(DeviceMesh mesh) : mesh_(std::move(mesh)), outer_(std::exchange(innermost_mesh_scope, this)) {}

MeshScope::~MeshScope() {
  innermost_mesh_scope = outer_;
}

const DeviceMesh* MeshAccess::current() noexcept {
  return innermost_mesh_scope != nullptr ? &innermost_mesh_scope->mesh_ : nullptr;
}

DeviceMesh current_device_mesh() {
  const auto* const mesh = MeshAccess::current();
  if (mesh == nullptr) {
    throw Error(
        "this thread has no current device mesh: pass a mesh, or make one current with cohort::MeshScope scope(mesh)");
  }
  return *mesh;
}

}  // namespace cohort
