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
#pragma once

#include <cohort/export.h>
#include <cohort/options.h>
#include <cohort/process_group.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cohort {

namespace detail {
struct MeshState;
}  // namespace detail

/// A mesh dimension, by index (negative: from the last) or by name.
using MeshDim = std::variant<std::int64_t, std::string>;

/// A handle: copies refer to the same mesh.
class COHORT_API DeviceMesh {
 public:
  std::int64_t ndim() const noexcept;
  const std::vector<std::int64_t>& shape() const noexcept;
  /// The number of ranks.
  std::int64_t size() const noexcept;
  std::int64_t size(std::int64_t dim) const;
  /// "cpu" or "cuda".
  const std::string& device_type() const noexcept;
  /// One for each dimension, or none.
  const std::vector<std::string>& dim_names() const noexcept;

  /// This rank's place, one index for each dimension; null if this rank is not in the mesh.
  const std::vector<std::int64_t>* coordinate() const noexcept;
  /// The group of the ranks that differ from this one in dimension `dim` alone. Its ranks are in the order of the mesh:
  /// the rank in the group equals coordinate()[dim].
  const ProcessGroupPtr& group(std::int64_t dim) const;
  const ProcessGroupPtr& group(std::string_view name) const;

  /// By value: ranks, shape, names and device type.
  bool operator==(const DeviceMesh& other) const noexcept;

 private:
  std::shared_ptr<const detail::MeshState> state_;
};

}  // namespace cohort
