// SPDX-License-Identifier: BSD-3-Clause
//
// The cache of plans has few places, so that many plans come to have the same one: none may be taken for another.
#include "torch/dtensor/cases.h"
#include "torch/dtensor/plan.h"

namespace cohort::test {

namespace {

dtensor::Plan plan_without_cache(const Case& each) {
  return dtensor::make_plan(each.from, each.to, each.shape,
                            dtensor::divides_evenly(each.from, each.to, each.shape, each.sizes));
}

/// The cache's answers, in this order, are those without a cache.
void expect_same_plans(const std::vector<Case>& cases) {
  for (const auto& each : cases) {
    ASSERT_EQ(*dtensor::plan(each.from, each.to, each.shape, each.sizes), plan_without_cache(each)) << to_string(each);
  }
}

const Placements cached_placements{Replicate(), Shard(0), Shard(1), StridedShard(0, 2), StridedShard(0, 3), Partial()};

/// Pairs that differ in one component follow one another, so that each is in the way of the next.
template <class Vary>
std::vector<Case> varied(const Vary& vary) {
  std::vector<Case> cases;
  for (const auto& each : all_cases({2, 2}, {12, 12}, cached_placements)) {
    for (const auto& next : vary(each)) {
      if (is_allowed(next)) cases.push_back(next);
    }
  }
  return cases;
}

TEST(PlanCacheKeys, MeshesAreKeptApart) {
  expect_same_plans(varied([](const Case& each) {
    std::vector<Case> all;
    for (const auto& shape : {Sizes{2, 2}, Sizes{1, 2}, Sizes{2, 1}, Sizes{3, 2}, Sizes{2, 3}, Sizes{4, 3}}) {
      all.push_back(each);
      all.back().shape = shape;
    }
    return all;
  }));
}

TEST(PlanCacheKeys, EvenAndUnevenSizesAreKeptApart) {
  expect_same_plans(varied([](const Case& each) {
    auto uneven = each;
    uneven.sizes = {7, 5};
    return std::vector<Case>{each, uneven, each};
  }));
}

TEST(PlanCacheKeys, SourcesAndTargetsAreKeptApart) {
  const auto lists = all_lists(cached_placements, 2);
  expect_same_plans(varied([&](const Case& each) {
    std::vector<Case> all;
    for (std::size_t i = 0; i < lists.size(); i += 5) {
      all.push_back(each);
      all.push_back(each);
      all.back().from = lists[i];
      all.push_back(each);
      all.back().to = lists[i];
    }
    return all;
  }));
}

}  // namespace

}  // namespace cohort::test
