// SPDX-License-Identifier: BSD-3-Clause
//
// The groups a hybrid group is made of, and their names.
#pragma once

#include <cohort/backend.h>

#include <fmt/format.h>

#include <string>

#include "backends/hybrid/placement.h"

namespace cohort::hybrid {

inline std::string local_id(const std::string& group, const Placement& placement) {
  return fmt::format("{}/host{}", group, placement.host());
}
inline std::string rail_id(const std::string& group, int leader) {
  return fmt::format("{}/rail{}", group, leader);
}

/// Called by all ranks of `world`. Splits off each rail in turn and returns this rank's, or null if it is not a leader.
inline BackendPtr make_rail(Backend& world, const Placement& placement, const std::string& group, Deadline deadline) {
  BackendPtr mine;
  for (int leader = 0; leader < placement.fewest(); ++leader) {
    BackendSplit split{.id = rail_id(group, leader)};
    for (const auto& host : placement.hosts()) split.ranks.push_back(host[static_cast<std::size_t>(leader)]);
    if (auto rail = world.split(split, deadline)) mine = std::move(rail);
  }
  return mine;
}

}  // namespace cohort::hybrid
