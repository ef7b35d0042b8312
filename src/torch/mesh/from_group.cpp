// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes out of groups that exist.
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/mesh.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/rank_index.h"
#include "torch/mesh/check.h"
#include "torch/mesh/state.h"

namespace cohort {

namespace {

using detail::MeshAxis;
using detail::MeshRoot;

[[noreturn]] void refuse_from_group(const std::string& why) {
  throw ValueError("DeviceMesh::from_group: " + why);
}

int own_global_rank(const ProcessGroup& group) {
  return group.global_ranks()[index_of(group.rank())];
}

/// Leaves the root without a world if the mesh is not within it.
void set_world(MeshRoot& root, const ProcessGroupPtr& world) {
  if (world == nullptr) return;
  const auto& all = world->global_ranks();
  std::vector<int> ranks_of_world;
  for (const int each : root.ranks) {
    const auto found = std::find(all.begin(), all.end(), each);
    if (found == all.end()) return;
    ranks_of_world.push_back(static_cast<int>(found - all.begin()));
  }
  root.world = world;
  root.ranks_of_world = std::move(ranks_of_world);
}

}  // namespace

DeviceMesh DeviceMesh::from_group(const ProcessGroupPtr& group, std::string device_type,
                                  const std::optional<RankArray>& ranks, std::vector<std::string> names) {
  if (group == nullptr) refuse_from_group("the group is null");
  const RankArray own(group->global_ranks());
  if (ranks && *ranks != own) {
    refuse_from_group(fmt::format("the ranks {} are not those of the group, {}", to_string(*ranks), to_string(own)));
  }
  detail::check_names(names, 1);
  return from_group(std::vector{group}, std::move(device_type), own, std::move(names), group);
}

DeviceMesh DeviceMesh::from_group(const std::vector<ProcessGroupPtr>& groups, std::string device_type,
                                  const RankArray& ranks, std::vector<std::string> names,
                                  const ProcessGroupPtr& world) {
  const auto ndim = ranks.shape().size();
  if (groups.empty()) refuse_from_group("no groups given");
  if (groups.size() != ndim) {
    refuse_from_group(fmt::format("{} groups for a mesh of {} dimensions: give one for each", groups.size(), ndim));
  }
  if (names.size() != ndim && !(ndim == 1 && names.empty())) {
    refuse_from_group(fmt::format("{} names for a mesh of {} dimensions: give one for each", names.size(), ndim));
  }
  detail::check_mesh_ranks(ranks);
  detail::check_names(names, ndim);
  detail::check_device_type(device_type);
  for (const auto& each : groups) {
    if (each == nullptr) refuse_from_group("a group is null: every group has this rank as a member");
    detail::check_device_type_of(device_type, *each);
  }

  auto root = std::make_shared<MeshRoot>();
  root->device_type = std::move(device_type);
  root->ranks = ranks.ranks();
  root->names = names;
  root->own_rank = own_global_rank(*groups.front());
  const auto own = std::find(root->ranks.begin(), root->ranks.end(), root->own_rank);
  if (own == root->ranks.end()) {
    refuse_from_group(fmt::format("this rank, {}, is not in the mesh {}", root->own_rank, to_string(ranks)));
  }
  root->position = own - root->ranks.begin();
  set_world(*root, world != nullptr ? world : current_process_group());

  auto offsets = detail::row_major_offsets(ranks.shape());
  std::vector<MeshAxis> axes;
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    MeshAxis axis{.name = names.empty() ? "" : names[dim], .offsets = std::move(offsets[dim]), .group = groups[dim]};
    axis.index = detail::own_index(*root, axis.offsets);
    std::vector<int> along;
    const auto base = root->position - axis.offsets[static_cast<std::size_t>(axis.index)];
    for (const auto offset : axis.offsets) along.push_back(root->ranks[static_cast<std::size_t>(base + offset)]);
    if (axis.group->global_ranks() != along || axis.group->rank() != axis.index) {
      refuse_from_group(fmt::format("the group of dimension {} has the ranks {}, but the mesh {} has {} there", dim,
                                    to_string(RankArray(axis.group->global_ranks())), to_string(ranks),
                                    to_string(RankArray(along))));
    }
    axes.push_back(std::move(axis));
  }
  return MeshAccess::make(root, std::move(axes));
}

}  // namespace cohort
