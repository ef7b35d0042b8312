// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/placement.h>

#include <random>
#include <sstream>
#include <unordered_set>

#include "support/expect_error.h"
#include "torch/dtensor/dense.h"
#include "torch/dtensor/shard_ranges.h"

namespace cohort::test {

namespace {

using dtensor::for_each_range;
using dtensor::shard_size;

std::vector<std::int64_t> indices(const Placement& shard, std::int64_t elements, std::int64_t ranks,
                                  std::int64_t rank) {
  std::vector<std::int64_t> all;
  for_each_range(shard, elements, ranks, rank, [&](const ShardRange& range) {
    for (std::int64_t i = 0; i < range.size; ++i) all.push_back(range.offset + i);
  });
  return all;
}

TEST(Placement, HasTextPredicatesAndFields) {
  EXPECT_EQ(to_string(Replicate()), "R");
  EXPECT_EQ(to_string(Shard(1)), "S(1)");
  EXPECT_EQ(to_string(StridedShard(0, 2)), "_S(0, 2)");
  EXPECT_EQ(to_string(Partial("max")), "P(max)");
  EXPECT_EQ(to_string(Placements{Shard(0), Replicate()}), "[S(0), R]");
  std::ostringstream out;
  out << Partial();
  EXPECT_EQ(out.str(), "P(sum)");

  EXPECT_TRUE(Shard(1).is_shard(1));
  EXPECT_FALSE(Shard(1).is_shard(0));
  EXPECT_TRUE(StridedShard(1, 2).is_shard(1));
  EXPECT_TRUE(StridedShard(1, 2).is_strided_shard());
  EXPECT_FALSE(Shard(1).is_strided_shard());
  EXPECT_TRUE(Partial().is_partial(Placement::Reduction::sum));
  EXPECT_FALSE(Partial("avg").is_partial(Placement::Reduction::sum));
  EXPECT_TRUE(Replicate().is_replicate());
  EXPECT_EQ(StridedShard(1, 2).split_factor(), 2);
  EXPECT_EQ(Shard(1).split_factor(), 1);
  for (const auto* const name : {"sum", "avg", "product", "max", "min"}) {
    EXPECT_EQ(to_string(Partial(name).reduction()), name);
  }
}

TEST(Placement, RefusesWhatItIsNot) {
  EXPECT_ERROR(Error, Replicate().dim(), "not a shard");
  EXPECT_ERROR(Error, Shard(0).reduction(), "not a Partial");
  EXPECT_ERROR(ValueError, Partial("mean"), "sum, avg, product, max, min");
  EXPECT_ERROR(ValueError, StridedShard(0, 0), "split_factor");
}

TEST(Placement, EqualityAndHashSeeEveryField) {
  const Placements all{Replicate(),        Shard(0),           Shard(1),           StridedShard(0, 1),
                       StridedShard(0, 2), StridedShard(1, 2), StridedShard(0, 3), Partial("sum"),
                       Partial("avg"),     Partial("product"), Partial("max"),     Partial("min")};
  std::unordered_set<std::size_t> hashes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    hashes.insert(std::hash<Placement>()(all[i]));
    for (std::size_t j = 0; j < all.size(); ++j) EXPECT_EQ(all[i] == all[j], i == j) << all[i] << " " << all[j];
  }
  EXPECT_EQ(hashes.size(), all.size());
}

TEST(ShardArithmetic, GivesTheSpecifiedParts) {
  const auto sizes = [](std::int64_t elements, std::int64_t ranks) {
    std::vector<std::int64_t> all;
    for (std::int64_t rank = 0; rank < ranks; ++rank) all.push_back(shard_range(elements, ranks, rank).size);
    return all;
  };
  EXPECT_EQ(sizes(8, 4), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(sizes(7, 4), (std::vector<std::int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(sizes(5, 4), (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(sizes(9, 4), (std::vector<std::int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(sizes(1, 3), (std::vector<std::int64_t>{1, 0, 0}));
  EXPECT_EQ(sizes(0, 2), (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(shard_range(5, 4, 3), (ShardRange{5, 0}));
  EXPECT_EQ(shard_range(9, 4, 2), (ShardRange{6, 3}));
}

/// Every element has one owner, parts follow each other, none is larger than the first one, and only at the end they
/// are smaller.
TEST(ShardArithmetic, HoldsForAllSmallSizes) {
  for (std::int64_t ranks = 1; ranks <= 9; ++ranks) {
    for (std::int64_t elements = 0; elements <= 40; ++elements) {
      std::int64_t next = 0;
      const auto chunk = elements == 0 ? 0 : 1 + (elements - 1) / ranks;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto range = shard_range(elements, ranks, rank);
        EXPECT_EQ(range.offset, next);
        EXPECT_EQ(range.size, std::max<std::int64_t>(0, std::min(elements, (rank + 1) * chunk) - rank * chunk));
        EXPECT_EQ(range.offset, range.size > 0 ? rank * chunk : elements);
        next += range.size;
      }
      EXPECT_EQ(next, elements);
    }
  }
}

TEST(ShardArithmetic, OfStridedShardsAgreesWithTheirDefinition) {
  std::mt19937 random(20260);
  for (int round = 0; round < 2000; ++round) {
    const auto elements = static_cast<std::int64_t>(random() % 50);
    const auto ranks = static_cast<std::int64_t>(1 + random() % 5);
    const StridedShard shard(0, static_cast<std::int64_t>(1 + random() % 5));
    std::vector<int> owners(static_cast<std::size_t>(elements));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto mine = indices(shard, elements, ranks, rank);
      EXPECT_EQ(mine, held(shard, elements, ranks, rank));
      EXPECT_EQ(static_cast<std::int64_t>(mine.size()), shard_size(shard, elements, ranks, rank));
      EXPECT_LE(shard_size(shard, elements, ranks, rank), shard_size(shard, elements, ranks, 0));
      for (const auto index : mine) ++owners[static_cast<std::size_t>(index)];
    }
    EXPECT_THAT(owners, testing::Each(1)) << elements << " elements, " << ranks << " ranks, " << shard;
  }
}

/// What a strided shard is for: sharding the last mesh dimension first.
TEST(ShardArithmetic, OfAStridedShardIsShardingFromRightToLeft) {
  constexpr std::int64_t elements = 24;
  constexpr std::int64_t left = 2;
  constexpr std::int64_t right = 3;
  for (std::int64_t i = 0; i < left; ++i) {
    for (std::int64_t j = 0; j < right; ++j) {
      const auto outer = indices(StridedShard(0, right), elements, left, i);
      const auto inner = shard_range(static_cast<std::int64_t>(outer.size()), right, j);
      const auto first = shard_range(elements, right, j);
      const auto second = shard_range(first.size, left, i);
      ASSERT_EQ(inner.size, second.size);
      EXPECT_EQ(outer[static_cast<std::size_t>(inner.offset)], first.offset + second.offset);
      EXPECT_EQ(outer[static_cast<std::size_t>(inner.offset + inner.size - 1)],
                first.offset + second.offset + second.size - 1);
    }
  }
}

}  // namespace

}  // namespace cohort::test
