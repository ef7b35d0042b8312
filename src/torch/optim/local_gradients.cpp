// SPDX-License-Identifier: BSD-3-Clause
#include "torch/optim/local_gradients.h"

#include <ATen/ATen.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "torch/dtensor/impl.h"
#include "torch/dtensor/known_parts.h"
#include "torch/dtensor/tell_peers.h"
#include "torch/optim/in_backward.h"

namespace cohort {

namespace {

/// The ranks of a mesh know nothing of a rank that is not on it, and would wait for it in the groups of other meshes.
void check_membership(const std::vector<LocalGradient>& gradients, std::string_view caller) {
  const auto is_elsewhere = [](const LocalGradient& each) {
    return each.layout != nullptr && each.layout->mesh.coordinate() == nullptr;
  };
  const auto found = std::find_if(gradients.begin(), gradients.end(), is_elsewhere);
  if (found == gradients.end()) return;
  const auto& elsewhere = found->layout->mesh;
  const Error error(
      fmt::format("{}: rank {} is not on {}, where a parameter lies, and cannot learn what its gradient is: "
                  "call it on the ranks of the mesh",
                  caller, elsewhere.rank(), to_string(elsewhere)));
  for (const auto& each : gradients) {
    if (each.layout == nullptr || is_elsewhere(each)) continue;
    const auto& mesh = each.layout->mesh;
    for (std::int64_t dim = 0; dim < mesh.ndim(); ++dim) dtensor::tell_peers(error, mesh, dim, caller);
  }
  throw Error(error);
}

void check_layout(const dtensor::Layout& layout, std::string_view caller) {
  const auto& mesh = layout.mesh;
  if (std::any_of(layout.placements.begin(), layout.placements.end(), [](const auto& x) { return x.is_partial(); })) {
    throw ValueError(
        fmt::format("{}: on rank {} a gradient lies as {} on {}, and is the sum of what the ranks hold: "
                    "redistribute it as its parameter",
                    caller, mesh.rank(), to_string(layout.placements), to_string(mesh)));
  }
}

}  // namespace

std::vector<LocalGradient> local_gradients(const std::vector<at::Tensor>& parameters, std::string_view caller) {
  std::vector<LocalGradient> all;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (in_backward::is_stepped(parameter)) {
      throw Error(
          fmt::format("{}: a parameter has an OptimizerInBackward, which has stepped it and dropped the gradient "
                      "before all gradients are known",
                      caller));
    }
    LocalGradient each{
        .gradient = parameter.grad(), .layout = dtensor::layout_of(parameter), .device = parameter.device()};
    if (each.gradient.defined() && each.gradient.is_sparse()) {
      if (!each.gradient.is_coalesced()) parameter.mutable_grad() = each.gradient = each.gradient.coalesce();
      each.gradient = each.gradient._values();
    }
    each.part = each.gradient;
    if (const auto* const distributed = dtensor::find_impl(each.gradient)) {
      each.part = distributed->local();
      each.layout = distributed->layout();
    }
    all.push_back(std::move(each));
  }
  check_membership(all, caller);
  for (const auto& each : all) {
    if (each.layout != nullptr) check_layout(*each.layout, caller);
  }
  return all;
}

void add_group(std::vector<ProcessGroupPtr>& groups, const ProcessGroupPtr& group) {
  if (group->size() > 1 && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
}

}  // namespace cohort
