// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cstddef>

#include "torch/dtensor/plan.h"

namespace cohort::dtensor {

namespace {

struct CachedPlan {
  Placements from;
  Placements to;
  std::vector<std::int64_t> mesh_shape;
  bool is_even = true;
  std::shared_ptr<const Plan> plan;

  bool is_for(const Placements& source, const Placements& target, c10::IntArrayRef shape, bool even) const {
    return plan && is_even == even && from == source && to == target && c10::IntArrayRef(mesh_shape) == shape;
  }
};

/// A plan has one place in which it can be; a newer one with the same place replaces it.
constexpr std::size_t places_for_plans = 128;

std::size_t place_for_plan(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape, bool is_even) {
  constexpr std::size_t prime = 0x100000001B3U;
  std::size_t hash = is_even ? 1 : 0;
  for (const auto& each : from) hash = (hash ^ hash_value(each)) * prime;
  for (const auto& each : to) hash = (hash ^ hash_value(each)) * prime;
  for (const auto size : mesh_shape) hash = (hash ^ static_cast<std::size_t>(size)) * prime;
  return (hash ^ (hash >> 32U)) % places_for_plans;
}

}  // namespace

std::shared_ptr<const Plan> plan(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape,
                                 c10::IntArrayRef sizes) {
  // One for each thread, so that a look-up takes no lock.
  thread_local std::array<CachedPlan, places_for_plans> cache;
  // Only plans with strided shards depend on the sizes, and only on this.
  const auto is_strided = [](const Placement& each) { return each.is_strided_shard(); };
  const bool is_even =
      (std::none_of(from.begin(), from.end(), is_strided) && std::none_of(to.begin(), to.end(), is_strided)) ||
      divides_evenly(from, to, mesh_shape, sizes);
  auto& place = cache[place_for_plan(from, to, mesh_shape, is_even)];
  if (!place.is_for(from, to, mesh_shape, is_even)) {
    place = {.from = from,
             .to = to,
             .mesh_shape = mesh_shape.vec(),
             .is_even = is_even,
             .plan = std::make_shared<const Plan>(make_plan(from, to, mesh_shape, is_even))};
  }
  return place.plan;
}

}  // namespace cohort::dtensor
