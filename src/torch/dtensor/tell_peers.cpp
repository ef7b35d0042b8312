// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/tell_peers.h"

#include <cohort/error.h>

#include <fmt/format.h>

namespace cohort::dtensor {

void tell_peers(const std::exception& error, const DeviceMesh& mesh, std::int64_t mesh_dim, std::string_view where) {
  const auto group = mesh.group(mesh_dim);
  const auto* const of_a_group = dynamic_cast<const DistributedError*>(&error);
  const bool has_told = of_a_group != nullptr && of_a_group->context().group == group->id();
  if (has_told || !group->why_closed().empty()) return;
  group->abort(fmt::format("rank {} failed within {}: {}", group->rank(), where, error.what()));
}

}  // namespace cohort::dtensor
