// SPDX-License-Identifier: BSD-3-Clause
//
// A DeviceMesh arranges the ranks of a group in an array of one or more dimensions, each with a process group for the
// ranks that differ in that dimension alone. Distributed tensors (dtensor.h) and tensor parallelism (parallelize.h) are
// laid out on meshes.
//
//   cohort::ProcessGroupGuard scope(pg);                                         // 8 ranks
//   auto mesh = cohort::init_device_mesh("cpu", {2, 4}, {"dp", "tp"});           // [[0, 1, 2, 3], [4, 5, 6, 7]]
//   mesh.group("tp")->all_reduce(x);                                             // among my row
//   auto tp = mesh["tp"];                                                        // my row, as a mesh of its own
//   auto all = mesh.flatten();                                                   // 1-D, "dp_tp"
//
// Ranks are global ranks (ProcessGroup::global_ranks): those of the group itself, unless it was split from another one.
//
// Making a mesh, flatten() and unflatten() make process groups. They are called by all ranks of the group that the mesh
// is made over, also by those outside the mesh, in the same order and with the same arguments. The ranks compare the
// arguments first: if they disagree, every rank gets an error that names one that differs, and no group is made. All
// groups of a dimension are made in one step, and either all ranks get them or none does. Slicing, concatenate() and
// all queries are local.
//
// The device of a rank is that of its group (new_group's `device`); a mesh selects none.
//
// docs/mesh.md has pictures and more examples.
#pragma once

#include <cohort/export.h>
#include <cohort/options.h>
#include <cohort/process_group.h>
#include <cohort/torch/rank_array.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cohort {

class DeviceMesh;

/// A mesh dimension, by index (negative: from the last) or by name.
using MeshDim = std::variant<std::int64_t, std::string>;

/// The backend of the groups of one mesh dimension. At least one member is given.
struct MeshBackend {
  std::optional<std::string> backend{};  ///< default: that of the group that the mesh is made over
  std::optional<Options> options{};      ///< default: none
};
using MeshBackends = std::map<MeshDim, MeshBackend>;

struct MeshOptions {
  /// The group that the mesh is made over. Null: current_process_group().
  ProcessGroupPtr process_group{};
  /// Dimensions whose groups are made with another backend or with other options than that group.
  MeshBackends backend_override{};
};

namespace detail {

/// What the queries below need; the rest of a mesh's state derives from it (src/torch/mesh/state.h).
struct MeshFacts {
  std::string device_type{};
  std::vector<std::int64_t> shape{};
  std::int64_t size = 1;
  std::vector<std::string> names{};
  bool is_member = false;
  std::vector<std::int64_t> coordinate{};
  std::vector<ProcessGroupPtr> groups{};  ///< empty if this rank is not a member
};

}  // namespace detail

/// A handle: copies refer to the same mesh.
class COHORT_API DeviceMesh {
 public:
  /// A mesh of these ranks. `device_type` is "cpu" or "cuda", and `names` has one name for each dimension, or none.
  ///
  /// Throws Error if the device type has an index, if the group has no backend for it, if there are more ranks than in
  /// the group, if the names are not unique or not as many as the dimensions, or if backend_override names an unknown
  /// dimension or one of them twice; AssertionError if a rank is given twice; ValueError if a rank is not in the group
  /// or the array is empty.
  DeviceMesh(std::string device_type, RankArray ranks, std::vector<std::string> names = {},
             const MeshOptions& options = {});

  /// A mesh of one dimension over the ranks of a group, which it uses; nothing is communicated. Throws ValueError if
  /// `ranks` is given and differs from the group's global ranks.
  static DeviceMesh from_group(const ProcessGroupPtr& group, std::string device_type,
                               const std::optional<RankArray>& ranks = std::nullopt,
                               std::vector<std::string> names = {});
  /// A mesh of several dimensions out of the groups that this rank is in, one for each dimension; nothing is
  /// communicated. Throws ValueError unless groups, array and names fit each other. flatten() and unflatten() make
  /// groups over `world` (default: the current group, if there is one).
  static DeviceMesh from_group(const std::vector<ProcessGroupPtr>& groups, std::string device_type,
                               const RankArray& ranks, std::vector<std::string> names,
                               const ProcessGroupPtr& world = nullptr);

  // --- the mesh -----------------------------------------------------------------------------------------------------
  std::int64_t ndim() const noexcept { return static_cast<std::int64_t>(facts_->shape.size()); }
  const std::vector<std::int64_t>& shape() const noexcept { return facts_->shape; }
  /// The number of ranks.
  std::int64_t size() const noexcept { return facts_->size; }
  /// Throws IndexError if there is no such dimension.
  std::int64_t size(std::int64_t dim) const { return facts_->shape[index_of(dim)]; }
  std::int64_t size(std::string_view name) const { return size(dim(name)); }
  /// "cpu" or "cuda".
  const std::string& device_type() const noexcept { return facts_->device_type; }
  /// One for each dimension, or none.
  const std::vector<std::string>& dim_names() const noexcept { return facts_->names; }
  /// The index of the dimension with this name. Throws KeyError if there is none.
  std::int64_t dim(std::string_view name) const;
  /// The ranks of this mesh. A slice consists of several meshes with the same shape: this is the one with this rank.
  /// Throws Error on a rank that is not in a sliced mesh.
  RankArray ranks() const;

  // --- this rank ----------------------------------------------------------------------------------------------------
  /// Its global rank.
  int rank() const noexcept;
  /// Its place, one index for each dimension; null if this rank is not in the mesh.
  const std::vector<std::int64_t>* coordinate() const noexcept {
    return facts_->is_member ? &facts_->coordinate : nullptr;
  }
  /// Its index in one dimension, which is its rank in that dimension's group. Without a dimension the mesh must have
  /// one only. Throws Error if this rank is not in the mesh.
  int local_rank() const;
  int local_rank(std::int64_t dim) const;
  int local_rank(std::string_view name) const { return local_rank(dim(name)); }

  // --- groups -------------------------------------------------------------------------------------------------------
  /// The group of the ranks that differ from this one in dimension `dim` alone. Its ranks are in the order of the mesh:
  /// the rank in the group equals coordinate()[dim]. Throws Error if this rank is not in the mesh.
  const ProcessGroupPtr& group(std::int64_t dim) const {
    const auto index = index_of(dim);
    if (!facts_->is_member) [[unlikely]]
      refuse_outside("group");
    return facts_->groups[index];
  }
  /// Also finds the dimensions that flatten() has made of this mesh, or of the one that it was sliced from.
  const ProcessGroupPtr& group(std::string_view name) const;
  /// The group of a mesh that has one dimension.
  const ProcessGroupPtr& group() const;
  /// In the order of the dimensions; empty if this rank is not in the mesh.
  const std::vector<ProcessGroupPtr>& all_groups() const noexcept { return facts_->groups; }

  // --- other meshes -------------------------------------------------------------------------------------------------
  /// The mesh of these dimensions alone that this rank is in: in mesh["tp"], this rank's row. Shares the groups. Names
  /// are of this mesh's dimensions, in their order, or of dimensions that flatten() has made. With all names it is this
  /// mesh. Throws Error if the dimensions have no names or share ranks, and KeyError if a name is unknown or out of
  /// order.
  DeviceMesh operator[](std::string_view name) const { return slice({std::string(name)}); }
  DeviceMesh operator[](std::initializer_list<std::string_view> names) const {
    return slice({names.begin(), names.end()});
  }
  DeviceMesh slice(const std::vector<std::string>& names) const;

  /// All dimensions merged into one, with a group of its own. The name is by default the dimensions' names joined by
  /// "_". Repeating it returns the same mesh. Throws ValueError if the name is that of a dimension, or of dimensions
  /// that were flattened before and differ.
  DeviceMesh flatten(std::string name = {}, const MeshBackend& backend = {}) const;
  /// One dimension divided into several. Their groups are made; the other dimensions keep theirs. `backend_override`
  /// is of the new dimensions, counted from 0. Throws ValueError unless the product of the sizes is the size of the
  /// dimension, and Error if the names do not fit.
  DeviceMesh unflatten(const MeshDim& dim, const std::vector<std::int64_t>& sizes, std::vector<std::string> names = {},
                       const MeshBackends& backend_override = {}) const;
  /// The dimensions of several meshes, which were sliced from the same mesh, as one. Throws Error if they were not, or
  /// if they share ranks besides this one.
  static DeviceMesh concatenate(const std::vector<DeviceMesh>& meshes);

  /// By value: ranks, shape, names and device type; whatever their groups.
  bool operator==(const DeviceMesh& other) const noexcept { return facts_ == other.facts_ || has_equal_value(other); }
  std::size_t hash() const noexcept;

 private:
  friend struct MeshAccess;
  explicit DeviceMesh(std::shared_ptr<const detail::MeshFacts> facts) : facts_(std::move(facts)) {}

  std::size_t index_of(std::int64_t dim) const {
    const auto n = ndim();
    if (dim < -n || dim >= n) [[unlikely]]
      refuse_dim(dim);
    return static_cast<std::size_t>(dim < 0 ? dim + n : dim);
  }
  [[noreturn]] void refuse_dim(std::int64_t dim) const;
  [[noreturn]] void refuse_outside(std::string_view what) const;
  bool has_equal_value(const DeviceMesh& other) const noexcept;

  std::shared_ptr<const detail::MeshFacts> facts_;
};

/// A mesh of this shape over the ranks of the group, in row-major order. If the group has more ranks, the last ones are
/// outside the mesh. Throws as the constructor of DeviceMesh does.
COHORT_API DeviceMesh init_device_mesh(std::string device_type, const std::vector<std::int64_t>& shape,
                                       std::vector<std::string> names = {}, const MeshOptions& options = {});

/// "DeviceMesh(cpu, dp: 2, tp: 2, [[0, 1], [2, 3]])"
COHORT_API std::string to_string(const DeviceMesh& mesh);

/// Makes a mesh the current one of this thread until the end of the scope. Scopes nest; a new thread has none.
///
///   cohort::MeshScope scope(mesh);
///   assert(cohort::current_device_mesh() == mesh);
class COHORT_API MeshScope {
 public:
  explicit MeshScope(DeviceMesh mesh);
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;

 private:
  friend struct MeshAccess;

  const DeviceMesh mesh_;
  const MeshScope* const outer_;
};

/// Throws an Error that says how to set one if this thread has no current mesh.
COHORT_API DeviceMesh current_device_mesh();

}  // namespace cohort

template <>
struct std::hash<cohort::DeviceMesh> {
  std::size_t operator()(const cohort::DeviceMesh& mesh) const noexcept { return mesh.hash(); }
};
