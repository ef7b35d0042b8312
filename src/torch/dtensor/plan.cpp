// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/plan.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

namespace cohort::dtensor {

namespace {

/// Any two of these can be exchanged: whether a rank first sums or first averages over a mesh dimension does not
/// matter.
bool is_linear(Placement::Reduction reduction) {
  return reduction == Placement::Reduction::sum || reduction == Placement::Reduction::avg;
}

void check_reachable(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape) {
  if (from.size() != mesh_shape.size() || to.size() != mesh_shape.size()) {
    throw ValueError(
        fmt::format("redistribute: {} -> {}, but the mesh has {} dimensions; a tensor has one placement for each",
                    to_string(from), to_string(to), mesh_shape.size()));
  }
  for (std::size_t dim = 0; dim < to.size(); ++dim) {
    if (!to[dim].is_partial() || to[dim] == from[dim]) continue;
    if (from[dim].is_replicate() && to[dim].is_partial(Placement::Reduction::sum)) continue;
    throw Error(fmt::format(
        "redistribute: {} -> {}: mesh dimension {} cannot become {}. A tensor is Partial only as the result of an "
        "operator; choose Replicate or Shard there",
        to_string(from), to_string(to), dim, to_string(to[dim])));
  }
}

/// Finds the cheapest way through the placements that the mesh dimensions can have on the way.
class Search {
 public:
  Search(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape, bool is_even)
      : shape_(mesh_shape), is_even_(is_even) {
    for (std::size_t dim = 0; dim < from.size(); ++dim) {
      // A mesh dimension of one rank holds everything, whatever it is called.
      auto& choices = choices_.emplace_back(Placements{shape_[dim] == 1 ? Placement(Replicate()) : from[dim]});
      if (shape_[dim] == 1) continue;
      for (const Placement& other : {to[dim], Placement(Replicate())}) {
        if (std::find(choices.begin(), choices.end(), other) == choices.end()) choices.push_back(other);
      }
    }
    for (std::size_t dim = 0; dim < to.size(); ++dim) {
      strides_.push_back(states_);
      const auto goal = std::find(choices_[dim].begin(), choices_[dim].end(), to[dim]);
      if (shape_[dim] > 1) goal_ += states_ * static_cast<std::size_t>(goal - choices_[dim].begin());
      states_ *= choices_[dim].size();
    }
  }

  /// nullopt: there is no way.
  std::optional<Plan> run();

 private:
  /// Cost, collectives, steps: compared in this order.
  using Price = std::tuple<double, int, int>;
  struct Reached {
    Price price{std::numeric_limits<double>::infinity(), 0, 0};
    std::size_t before = 0;
    Transition step{.mesh_dim = 0, .from = Replicate(), .to = Replicate()};
  };

  Placements placements(std::size_t state) const;
  bool can_cut(const Placements& now, std::size_t mesh_dim, const Placement& shard) const;
  bool is_right_to_left(const Placements& now, std::size_t mesh_dim, const Placement& shard) const;
  bool can_reduce(const Placements& now, std::size_t mesh_dim, Placement::Reduction reduction) const;
  bool is_possible(const Placements& now, std::size_t mesh_dim, const Placement& to) const;
  Transition transition(const Placements& now, std::size_t mesh_dim, const Placement& to) const;

  c10::IntArrayRef shape_;
  bool is_even_;
  std::vector<Placements> choices_;   // of each mesh dimension; the first is the source
  std::vector<std::size_t> strides_;  // a state is a number with one digit for each mesh dimension
  std::size_t states_ = 1;
  std::size_t goal_ = 0;
};

Placements Search::placements(std::size_t state) const {
  Placements all;
  all.reserve(choices_.size());
  for (std::size_t dim = 0; dim < choices_.size(); ++dim) {
    all.push_back(choices_[dim][state / strides_[dim] % choices_[dim].size()]);
  }
  return all;
}

/// Whether the strided shard of this mesh dimension was made inside the shards of the later mesh dimensions: then it
/// can be made and undone while they are there.
bool Search::is_right_to_left(const Placements& now, std::size_t mesh_dim, const Placement& shard) const {
  if (!shard.is_strided_shard() || !is_even_) return false;
  std::int64_t parts = 1;
  for (auto later = mesh_dim + 1; later < now.size(); ++later) {
    if (!now[later].is_shard(shard.dim())) continue;
    if (now[later].is_strided_shard()) return false;
    parts *= shape_[later];
  }
  return parts == shard.split_factor();
}

bool Search::can_cut(const Placements& now, std::size_t mesh_dim, const Placement& shard) const {
  const auto is_inside = [&](const Placement& later) { return later.is_shard(shard.dim()); };
  return std::none_of(now.begin() + static_cast<std::ptrdiff_t>(mesh_dim) + 1, now.end(), is_inside) ||
         is_right_to_left(now, mesh_dim, shard);
}

/// A tensor that is Partial on several mesh dimensions is reduced from the last to the first, unless the order does not
/// matter.
bool Search::can_reduce(const Placements& now, std::size_t mesh_dim, Placement::Reduction reduction) const {
  return std::none_of(now.begin() + static_cast<std::ptrdiff_t>(mesh_dim) + 1, now.end(), [&](const Placement& later) {
    return later.is_partial() && !commute(later.reduction(), reduction);
  });
}

bool Search::is_possible(const Placements& now, std::size_t mesh_dim, const Placement& to) const {
  const auto& from = now[mesh_dim];
  if (from == to) return false;
  if (to.is_partial() && !(from.is_replicate() && to.is_partial(Placement::Reduction::sum))) return false;
  if (from.is_shard() && to.is_shard() && from.dim() == to.dim()) return false;
  for (const auto& each : {from, to}) {
    if (each.is_shard() && !can_cut(now, mesh_dim, each)) return false;
    if (each.is_partial() && !can_reduce(now, mesh_dim, each.reduction())) return false;
  }
  return true;
}

Transition Search::transition(const Placements& now, std::size_t mesh_dim, const Placement& to) const {
  // Seen from inside the later mesh dimensions, such a strided shard is a plain one.
  const auto as_performed = [&](const Placement& each) -> Placement {
    return is_right_to_left(now, mesh_dim, each) ? Shard(each.dim()) : each;
  };
  const auto& from = now[mesh_dim];
  Transition step{.mesh_dim = static_cast<std::int64_t>(mesh_dim), .from = as_performed(from), .to = as_performed(to)};
  if (!from.is_shard()) return step;
  for (std::size_t other = 0; other < now.size(); ++other) {
    if (other == mesh_dim || !now[other].is_shard(from.dim())) continue;
    step.cuts.push_back({static_cast<std::int64_t>(other), now[other]});
  }
  return step;
}

/// The part of the tensor that a rank holds.
double fraction(const Placements& placements, c10::IntArrayRef mesh_shape) {
  double part = 1;
  for (std::size_t dim = 0; dim < placements.size(); ++dim) {
    if (placements[dim].is_shard()) part /= static_cast<double>(mesh_shape[dim]);
  }
  return part;
}

/// `held`: the part of the tensor that a rank holds before the step.
double cost_of(const Transition& step, double held, std::int64_t ranks) {
  constexpr double all_reduce = 4;
  constexpr double all_gather = 2;
  constexpr double reduce_scatter = 2;
  constexpr double all_to_all = 1;
  if (step.from.is_shard()) {
    return step.to.is_shard() ? all_to_all * held : all_gather * held * static_cast<double>(ranks);
  }
  if (step.from.is_partial()) return (step.to.is_shard() ? reduce_scatter : all_reduce) * held;
  return 0;
}

// Dijkstra's algorithm. Few mesh dimensions have three choices each, so there are few states.
std::optional<Plan> Search::run() {
  std::vector<Reached> reached(states_);
  reached[0].price = {0, 0, 0};
  using Entry = std::pair<Price, std::size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  open.push({reached[0].price, 0});
  while (!open.empty()) {
    const auto [price, state] = open.top();
    open.pop();
    if (state == goal_) break;
    if (price > reached[state].price) continue;
    const auto now = placements(state);
    const auto held = fraction(now, shape_);
    for (std::size_t dim = 0; dim < choices_.size(); ++dim) {
      const auto digit = state / strides_[dim] % choices_[dim].size();
      for (std::size_t choice = 0; choice < choices_[dim].size(); ++choice) {
        if (!is_possible(now, dim, choices_[dim][choice])) continue;
        auto step = transition(now, dim, choices_[dim][choice]);
        const auto cost = cost_of(step, held, shape_[dim]);
        const Price next{std::get<0>(price) + cost, std::get<1>(price) + (cost > 0 ? 1 : 0), std::get<2>(price) + 1};
        const auto neighbour = state + (choice - digit) * strides_[dim];
        if (!(next < reached[neighbour].price)) continue;
        reached[neighbour] = {.price = next, .before = state, .step = std::move(step)};
        open.push({next, neighbour});
      }
    }
  }
  if (std::isinf(std::get<0>(reached[goal_].price))) return std::nullopt;
  Plan steps;
  for (auto state = goal_; state != 0; state = reached[state].before) steps.push_back(std::move(reached[state].step));
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace

bool commute(Placement::Reduction a, Placement::Reduction b) {
  return a == b || (is_linear(a) && is_linear(b));
}

bool divides_evenly(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape, c10::IntArrayRef sizes) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    std::int64_t parts = 1;
    for (std::size_t mesh_dim = 0; mesh_dim < mesh_shape.size(); ++mesh_dim) {
      const auto tensor_dim = static_cast<std::int64_t>(dim);
      if (from[mesh_dim].is_shard(tensor_dim) || to[mesh_dim].is_shard(tensor_dim)) parts *= mesh_shape[mesh_dim];
    }
    if (sizes[dim] % parts != 0) return false;
  }
  return true;
}

Plan make_plan(const Placements& from, const Placements& to, c10::IntArrayRef mesh_shape, bool is_even) {
  check_reachable(from, to, mesh_shape);
  auto found = Search(from, to, mesh_shape, is_even).run();
  if (found) return *std::move(found);
  throw Error(fmt::format(
      "redistribute: {} -> {}: different reductions on several mesh dimensions are performed from the last dimension "
      "to "
      "the first, so a dimension stays Partial as long as an earlier one does not become Replicate or Shard",
      to_string(from), to_string(to)));
}

double cost_of(const Plan& plan, const Placements& from, c10::IntArrayRef mesh_shape) {
  auto now = from;
  double sum = 0;
  for (const auto& step : plan) {
    const auto dim = static_cast<std::size_t>(step.mesh_dim);
    sum += cost_of(step, fraction(now, mesh_shape), mesh_shape[dim]);
    now[dim] = step.to;
  }
  return sum;
}

}  // namespace cohort::dtensor
