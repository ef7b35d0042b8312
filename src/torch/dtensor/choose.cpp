// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <span>

#include "torch/dtensor/plan.h"
#include "torch/dtensor/rule.h"

namespace cohort::dtensor {

namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();

/// The relative cost of a redistribution on one mesh dimension, per byte of the tensor (the planner's figures).
double cost_per_byte(const Placement& from, const Placement& to) {
  if (from == to) return 0;
  if (from.is_partial()) {
    if (to.is_partial()) return impossible;
    return to.is_replicate() ? 4 : 2;
  }
  if (to.is_partial()) return impossible;
  if (from.is_replicate()) return 0;
  return to.is_replicate() ? 2 : 1;
}

struct Cost {
  double bytes = 0;
  int changes = 0;  ///< decides between strategies that move the same number of bytes
  bool operator<(const Cost& other) const {
    return bytes < other.bytes || (bytes == other.bytes && changes < other.changes);
  }
};

const Placement replicated = Replicate();

/// A strategy shards one dimension of what the operator computes, so it holds for strided shards of that dimension as
/// well, as long as all of them have the same factor.
Placement with_factor(const Placement& placement, std::int64_t factor) {
  return factor > 1 && placement.is_shard() ? Placement(StridedShard(placement.dim(), factor)) : placement;
}

/// A layout with these placements; one that an argument has already, if possible.
LayoutPtr layout_with(const OpCall& call, Placements&& placements) {
  for (const auto& each : call.tensors()) {
    if (each.impl != nullptr && each.impl->layout()->placements == placements) return each.impl->layout();
  }
  return std::make_shared<const Layout>(Layout{.mesh = call.mesh(), .placements = std::move(placements)});
}

/// The strategy for one mesh dimension.
struct Choice {
  const Strategy* strategy = nullptr;
  std::int64_t factor = 1;
  Placement argument(std::size_t i) const { return with_factor(strategy->arguments[i], factor); }
  Placement result(std::size_t i) const { return with_factor(strategy->results[i], factor); }
};

/// Whether a tensor can stay Partial on a mesh dimension, after what was chosen for the earlier ones: see commute().
bool can_stay_partial(const Placements& placements, std::span<const Choice> earlier, std::size_t argument) {
  const auto reduction = placements[earlier.size()].reduction();
  for (std::size_t dim = 0; dim < earlier.size(); ++dim) {
    const auto& before = placements[dim];
    if (!before.is_partial() || commute(before.reduction(), reduction)) continue;
    if (!(earlier[dim].argument(argument) == before)) return false;
  }
  return true;
}

/// `earlier`: what was chosen for the mesh dimensions before this one.
Cost cost_of(const Strategy& strategy, std::int64_t factor, const OpCall& call, std::span<const Choice> earlier) {
  Cost cost;
  const auto mesh_dim = earlier.size();
  const auto& tensors = call.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& each = tensors[i];
    const auto& from = each.impl == nullptr ? replicated : each.impl->layout()->placements[mesh_dim];
    const auto to = with_factor(strategy.arguments[i], factor);
    if (from == to) {
      if (!from.is_partial() || can_stay_partial(each.impl->layout()->placements, earlier, i)) continue;
      return {.bytes = impossible};
    }
    if (each.is_written || each.impl == nullptr) return {.bytes = impossible};
    // Sharding a dimension of one element saves nothing, and views cannot remove it any more.
    const bool is_pointless = to.is_shard() && each.sizes[static_cast<std::size_t>(to.dim())] <= 1;
    cost.bytes += cost_per_byte(from, is_pointless ? replicated : to) * static_cast<double>(each.impl->numel());
    ++cost.changes;
  }
  return cost;
}

/// The factor of the strided shards among the arguments; 1 if there are none.
std::int64_t factor_among(const OpCall& call, std::size_t mesh_dim) {
  for (const auto& each : call.tensors()) {
    if (each.impl == nullptr) continue;
    const auto& placement = each.impl->layout()->placements[mesh_dim];
    if (placement.is_strided_shard()) return placement.split_factor();
  }
  return 1;
}

Choice cheapest(const OpCall& call, const Strategies& strategies, bool takes_strided, std::span<const Choice> earlier) {
  Cost least{.bytes = impossible};
  Choice best;
  const auto consider = [&](std::int64_t factor) {
    for (const auto& each : strategies) {
      const auto cost = cost_of(each, factor, call, earlier);
      if (!(cost < least)) continue;
      least = cost;
      best = {.strategy = &each, .factor = factor};
      if (cost.bytes == 0 && cost.changes == 0) break;
    }
  };
  consider(1);
  const auto factor = takes_strided ? factor_among(call, earlier.size()) : 1;
  if (factor > 1) consider(factor);
  return best;
}

}  // namespace

Decision choose(const OpCall& call, const Strategies& strategies, bool takes_strided) {
  const auto mesh_dims = call.layout().placements.size();
  c10::SmallVector<Choice, 4> chosen;
  for (std::size_t dim = 0; dim < mesh_dims; ++dim) {
    chosen.push_back(cheapest(call, strategies, takes_strided, {chosen.data(), chosen.size()}));
    if (chosen.back().strategy == nullptr) {
      call.refuse("the operator has no rule for these placements; redistribute() an argument before");
    }
  }
  Decision decision;
  for (std::size_t i = 0; i < call.tensors().size(); ++i) {
    const auto* impl = call.tensors()[i].impl;
    bool is_there = true;
    for (std::size_t dim = 0; dim < mesh_dims && impl != nullptr; ++dim) {
      is_there = is_there && impl->layout()->placements[dim] == chosen[dim].argument(i);
    }
    if (impl == nullptr || is_there) {
      decision.arguments.push_back(impl == nullptr ? nullptr : impl->layout());
      continue;
    }
    Placements placements;
    for (std::size_t dim = 0; dim < mesh_dims; ++dim) placements.push_back(chosen[dim].argument(i));
    decision.arguments.push_back(layout_with(call, std::move(placements)));
  }
  for (std::size_t i = 0; i < chosen.front().strategy->results.size(); ++i) {
    const auto is_result = [&](const Layout& layout) {
      for (std::size_t dim = 0; dim < mesh_dims; ++dim) {
        if (!(layout.placements[dim] == chosen[dim].result(i))) return false;
      }
      return true;
    };
    LayoutPtr found;
    for (const auto& each : decision.arguments) {
      if (each != nullptr && is_result(*each)) found = each;
    }
    if (found == nullptr) {
      Placements placements;
      for (std::size_t dim = 0; dim < mesh_dims; ++dim) placements.push_back(chosen[dim].result(i));
      found = layout_with(call, std::move(placements));
    }
    decision.results.push_back(std::move(found));
  }
  return decision;
}

void run_by_strategies(OpCall& call, const Strategies& strategies, const SizesList& result_sizes) {
  const auto decision = choose(call, strategies);
  call.localize(decision.arguments);
  call.run_local();
  call.wrap_results(decision.results, result_sizes);
}

}  // namespace cohort::dtensor
