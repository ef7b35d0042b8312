// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes over a group: checks the arguments, compares them with the other ranks', and makes the groups.
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/mesh.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <unordered_map>
#include <utility>

#include "core/rank_index.h"
#include "torch/mesh/check.h"
#include "torch/mesh/groups.h"
#include "torch/mesh/state.h"

namespace cohort {

namespace {

using detail::MeshAxis;
using detail::MeshRoot;

/// A mesh before its groups are made.
struct MeshPlan {
  std::shared_ptr<MeshRoot> root{};
  std::vector<MeshAxis> axes{};
  std::vector<MeshBackend> overrides{};
};

/// The ranks of the group that the array's global ranks are.
std::vector<int> find_in_world(const RankArray& array, const ProcessGroup& world) {
  std::unordered_map<int, int> rank_of;
  rank_of.reserve(world.global_ranks().size());
  for (int rank = 0; rank < world.size(); ++rank) rank_of.emplace(world.global_ranks()[index_of(rank)], rank);
  std::vector<int> found;
  found.reserve(array.ranks().size());
  for (const int each : array.ranks()) {
    const auto it = rank_of.find(each);
    if (it == rank_of.end()) {
      throw ValueError(fmt::format("rank {} of the mesh {} is not in the group, which has the ranks {}", each,
                                   to_string(array), to_string(RankArray(world.global_ranks()))));
    }
    found.push_back(it->second);
  }
  return found;
}

MeshPlan plan_mesh(const std::string& device_type, const RankArray& array, std::vector<std::string> names,
                   const ProcessGroupPtr& world, const MeshBackends& backend_override) {
  const auto ndim = array.shape().size();
  detail::check_mesh_ranks(array);
  if (array.ranks().size() > index_of(world->size())) {
    throw Error(fmt::format("a mesh of {} ({} ranks) over a group of {} ranks", fmt::join(array.shape(), " x "),
                            array.ranks().size(), world->size()),
                {.group = world->id()});
  }
  detail::check_names(names, ndim);
  MeshPlan plan{.root = std::make_shared<MeshRoot>(),
                .overrides = detail::overrides_by_index(backend_override, names, ndim, *world)};
  detail::check_device_type(device_type);
  const bool uses_world = std::ranges::any_of(plan.overrides, [](const auto& each) { return !each.backend; });
  if (uses_world) detail::check_device_type_of(device_type, *world);

  auto& root = *plan.root;
  root.device_type = device_type;
  root.ranks = array.ranks();
  root.ranks_of_world = find_in_world(array, *world);
  root.names = names;
  root.world = world;
  root.own_rank = world->global_ranks()[index_of(world->rank())];
  const auto own = std::find(root.ranks.begin(), root.ranks.end(), root.own_rank);
  root.position = own == root.ranks.end() ? -1 : own - root.ranks.begin();
  auto offsets = detail::row_major_offsets(array.shape());
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    MeshAxis axis{.name = names.empty() ? "" : std::move(names[dim]), .offsets = std::move(offsets[dim])};
    axis.index = detail::own_index(root, axis.offsets);
    plan.axes.push_back(std::move(axis));
  }
  return plan;
}

/// `array` gives the mesh's ranks, or throws if that is impossible; `call` is the call in words.
template <class Array>
DeviceMesh create_mesh(const std::string& device_type, const Array& array, std::vector<std::string> names,
                       const MeshOptions& options, const std::string& call) {
  const auto world =
      options.process_group != nullptr ? options.process_group : require_current_process_group("DeviceMesh");
  MeshPlan plan;
  std::exception_ptr refused;
  try {
    plan = plan_mesh(device_type, array(*world), std::move(names), world, options.backend_override);
  } catch (const Error&) {
    refused = std::current_exception();
  }
  detail::compare_calls(*world, call, refused);
  for (std::size_t dim = 0; dim < plan.axes.size(); ++dim) {
    detail::make_group(*plan.root, plan.axes[dim], dim, plan.overrides[dim]);
  }
  return MeshAccess::make(plan.root, std::move(plan.axes));
}

RankArray row_major_ranks(const std::vector<std::int64_t>& shape, const ProcessGroup& world) {
  std::int64_t count = 1;
  for (const auto size : shape) {
    if (size < 1) throw ValueError(fmt::format("a mesh of {}: sizes are positive", fmt::join(shape, " x ")));
    count *= size;
    if (count > world.size()) {
      throw Error(fmt::format("a mesh of {} over a group of {} ranks", fmt::join(shape, " x "), world.size()),
                  {.group = world.id()});
    }
  }
  const auto& ranks = world.global_ranks();
  return {shape, std::vector<int>(ranks.begin(), ranks.begin() + count)};
}

/// Tells arrays apart whose text does not show them whole.
std::uint64_t digest_of(const std::vector<int>& ranks) {
  std::uint64_t digest = 14695981039346656037U;  // FNV-1a
  for (const int each : ranks) digest = (digest ^ static_cast<std::uint32_t>(each)) * 1099511628211U;
  return digest;
}

}  // namespace

DeviceMesh::DeviceMesh(std::string device_type, RankArray ranks, std::vector<std::string> names,
                       const MeshOptions& options)
    : DeviceMesh(create_mesh(
          device_type, [&](const ProcessGroup&) -> const RankArray& { return ranks; }, names, options,
          fmt::format("DeviceMesh({}, {} of {} (digest {:x}), {{{}}}{})", device_type, to_string(ranks),
                      fmt::join(ranks.shape(), " x "), digest_of(ranks.ranks()), fmt::join(names, ", "),
                      detail::to_text(options.backend_override)))) {}

DeviceMesh init_device_mesh(std::string device_type, const std::vector<std::int64_t>& shape,
                            std::vector<std::string> names, const MeshOptions& options) {
  return create_mesh(
      device_type, [&](const ProcessGroup& world) { return row_major_ranks(shape, world); }, names, options,
      fmt::format("init_device_mesh({}, {{{}}}, {{{}}}{})", device_type, fmt::join(shape, ", "), fmt::join(names, ", "),
                  detail::to_text(options.backend_override)));
}

}  // namespace cohort
