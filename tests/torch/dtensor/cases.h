// SPDX-License-Identifier: BSD-3-Clause
//
// Redistributions to be tested: all of a kind, or random ones, of which those that fail are made simpler.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "torch/dtensor/dense.h"

namespace cohort::test {

struct Case {
  Sizes shape;  ///< of the mesh
  Sizes sizes;  ///< of the tensor
  Placements from;
  Placements to;

  friend std::string to_string(const Case& each) {
    return fmt::format("{} -> {} of a tensor of ({}) on a mesh of {}", to_string(each.from), to_string(each.to),
                       fmt::join(each.sizes, ", "), fmt::join(each.shape, " x "));
  }
};

/// Whether two mesh dimensions can be reduced in either order.
inline bool can_swap(const Placement& a, const Placement& b) {
  const auto adds = [](const Placement& each) { return each == Partial() || each == Partial("avg"); };
  return a == b || (adds(a) && adds(b));
}

/// Whether the target can be reached: see plan.h. Restated here, so that a refusal too many or too few is noticed.
inline bool is_allowed(const Case& each) {
  for (std::size_t dim = 0; dim < each.to.size(); ++dim) {
    const auto& reduced = each.from[dim].is_partial() ? each.from[dim] : each.to[dim];
    if (each.shape[dim] == 1 || !reduced.is_partial() || each.from[dim] == each.to[dim]) continue;
    for (auto later = dim + 1; later < each.to.size(); ++later) {
      const bool stays = each.from[later].is_partial() && each.from[later] == each.to[later];
      if (stays && each.shape[later] > 1 && !can_swap(reduced, each.from[later])) return false;
    }
  }
  for (std::size_t dim = 0; dim < each.to.size(); ++dim) {
    const auto& from = each.from[dim];
    const auto& to = each.to[dim];
    if (to.is_partial() && from != to && !(from.is_replicate() && to == Partial())) return false;
  }
  return true;
}

/// All lists of placements, one for each mesh dimension, out of these.
inline std::vector<Placements> all_lists(const Placements& choices, std::size_t mesh_dims) {
  std::vector<Placements> lists{{}};
  for (std::size_t dim = 0; dim < mesh_dims; ++dim) {
    std::vector<Placements> longer;
    for (const auto& list : lists) {
      for (const auto& each : choices) {
        longer.push_back(list);
        longer.back().push_back(each);
      }
    }
    lists = std::move(longer);
  }
  return lists;
}

inline std::vector<Case> all_cases(const Sizes& shape, const Sizes& sizes, const Placements& choices) {
  std::vector<Case> cases;
  const auto lists = all_lists(choices, shape.size());
  for (const auto& from : lists) {
    for (const auto& to : lists) cases.push_back({.shape = shape, .sizes = sizes, .from = from, .to = to});
  }
  return cases;
}

inline const Placements plain_placements{Replicate(), Shard(0), Shard(1), Partial()};

/// A case that is allowed, on a mesh of this shape.
inline Case random_case(const Sizes& shape, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return static_cast<std::int64_t>(random() % limit); };
  Case each{.shape = shape, .sizes = {}, .from = {}, .to = {}};
  const auto dims = 1 + below(3);
  for (std::int64_t dim = 0; dim < dims; ++dim) each.sizes.push_back(below(4) == 0 ? 12 : below(9));
  const std::vector<Partial> reductions{Partial(), Partial("avg"), Partial("product"), Partial("max"), Partial("min")};
  const auto any_reduction = [&] { return reductions[static_cast<std::size_t>(below(reductions.size()))]; };
  const auto usual = any_reduction();
  const auto any = [&]() -> Placement {
    switch (below(6)) {
      case 0:
        return Replicate();
      case 1:
        return below(2) == 0 ? usual : any_reduction();
      case 2:
        return StridedShard(below(static_cast<std::size_t>(dims)), 1 + below(3));
      default:
        return Shard(below(static_cast<std::size_t>(dims)));
    }
  };
  do {
    each.from.clear();
    each.to.clear();
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      each.from.push_back(any());
      each.to.push_back(any());
    }
  } while (!is_allowed(each));
  return each;
}

/// Cases that are a little simpler than this one.
inline std::vector<Case> simpler(const Case& original) {
  std::vector<Case> all;
  const auto add = [&](const auto& change) {
    auto each = original;
    change(each);
    if (is_allowed(each)) all.push_back(std::move(each));
  };
  const auto erase = [](auto& list, std::size_t i) { list.erase(list.begin() + static_cast<std::ptrdiff_t>(i)); };
  for (std::size_t dim = 0; dim < original.shape.size(); ++dim) {
    if (original.shape.size() > 1) {
      add([&](Case& each) {
        erase(each.shape, dim);
        erase(each.from, dim);
        erase(each.to, dim);
      });
    }
    if (original.shape[dim] > 2) add([&](Case& each) { --each.shape[dim]; });
    if (!original.from[dim].is_replicate()) add([&](Case& each) { each.from[dim] = Replicate(); });
    if (!original.to[dim].is_replicate()) add([&](Case& each) { each.to[dim] = Replicate(); });
    if (original.from[dim].is_strided_shard()) {
      add([&](Case& each) { each.from[dim] = Shard(each.from[dim].dim()); });
    }
    if (original.to[dim].is_strided_shard()) add([&](Case& each) { each.to[dim] = Shard(each.to[dim].dim()); });
  }
  for (std::size_t dim = 0; dim < original.sizes.size(); ++dim) {
    if (original.sizes[dim] > 0) add([&](Case& each) { --each.sizes[dim]; });
  }
  return all;
}

/// `failure` returns what is wrong, or nothing. Reports the simplest case that still fails.
using Failure = std::function<std::string(const Case&)>;
inline void expect_passes(Case each, const Failure& failure, const std::string& seed = {}) {
  auto text = failure(each);
  if (text.empty()) return;
  const auto first = to_string(each);
  for (bool is_simplest = false; !is_simplest;) {
    is_simplest = true;
    for (const auto& next : simpler(each)) {
      auto other = failure(next);
      if (other.empty()) continue;
      each = next;
      text = std::move(other);
      is_simplest = false;
      break;
    }
  }
  ADD_FAILURE() << to_string(each) << ": " << text << "\n(made simpler from " << first
                << (seed.empty() ? "" : ", seed " + seed) << ")";
}

}  // namespace cohort::test
