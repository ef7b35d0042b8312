// SPDX-License-Identifier: BSD-3-Clause
//
// One mesh dimension: the values and the collectives of each transition.
#include "torch/dtensor/transitions.h"

#include "torch/dtensor/cases.h"
#include "torch/dtensor/collective_log.h"
#include "torch/torch_ranks.h"

namespace cohort::test {

namespace {

const Placements shards{Shard(0), Shard(1), Shard(2), StridedShard(0, 2), StridedShard(1, 3), StridedShard(2, 2)};
const Placements partials{Partial("sum"), Partial("avg"), Partial("product"), Partial("max"), Partial("min")};

std::vector<std::pair<Placement, Placement>> all_transitions() {
  std::vector<std::pair<Placement, Placement>> all{{Replicate(), Partial()}};
  for (const auto& shard : shards) {
    all.emplace_back(shard, Replicate());
    all.emplace_back(Replicate(), shard);
    for (const auto& other : shards) {
      if (other.dim() != shard.dim()) all.emplace_back(shard, other);
    }
    for (const auto& partial : partials) all.emplace_back(partial, shard);
  }
  for (const auto& partial : partials) all.emplace_back(partial, Replicate());
  return all;
}

class TransitionsOf : public testing::TestWithParam<int> {
 protected:
  /// `prepare` changes how the parts lie in memory.
  static void expect_right(const Sizes& sizes, const std::function<at::Tensor(const at::Tensor&)>& prepare) {
    const auto transitions = all_transitions();
    const auto ranks = GetParam();
    const auto whole = numbered(sizes);
    std::mt19937 random(3);
    std::vector<Parts> sources;
    std::vector<Parts> results(transitions.size(), Parts(static_cast<std::size_t>(ranks)));
    for (const auto& [from, to] : transitions) sources.push_back(split(whole, from, ranks, random));
    with_torch_threads(ranks, [&](const ProcessGroupPtr& group) {
      const auto rank = static_cast<std::size_t>(group->rank());
      CollectiveLog log({group});
      for (std::size_t i = 0; i < transitions.size(); ++i) {
        const auto& [from, to] = transitions[i];
        const auto elements = from.is_shard() ? whole.size(from.dim()) : 0;
        const auto result = dtensor::perform(from, to, prepare(sources[i][rank]), elements, group);
        EXPECT_EQ(log.take(), whole.numel() == 0 ? std::vector<OpType>{} : collectives_of(from, to))
            << from << " -> " << to;
        EXPECT_TRUE(result.is_contiguous() || from.is_replicate()) << from << " -> " << to;
        results[i][rank] = result;
      }
    });
    for (std::size_t i = 0; i < transitions.size(); ++i) {
      const auto& [from, to] = transitions[i];
      SCOPED_TRACE(fmt::format("{} -> {} of ({})", to_string(from), to_string(to), fmt::join(sizes, ", ")));
      if (to.is_partial()) {
        EXPECT_TRUE(at::allclose(join(results[i], to, 0), whole));
        continue;
      }
      const auto expected = split(whole, to, ranks, random);
      for (std::size_t rank = 0; rank < expected.size(); ++rank) {
        ASSERT_EQ(results[i][rank].sizes(), expected[rank].sizes()) << "rank " << rank;
        EXPECT_TRUE(at::allclose(results[i][rank], expected[rank])) << "rank " << rank;
      }
    }
  }
};

at::Tensor as_it_is(const at::Tensor& part) {
  return part;
}

TEST_P(TransitionsOf, EvenSizes) {
  expect_right({12, 24, 12}, as_it_is);
}

TEST_P(TransitionsOf, UnevenSizes) {
  expect_right({5, 7, 11}, as_it_is);
}

TEST_P(TransitionsOf, SizesWithEmptyParts) {
  expect_right({2, 5, 1}, as_it_is);
  expect_right({1, 1, 9}, as_it_is);
}

TEST_P(TransitionsOf, EmptyTensors) {
  expect_right({3, 0, 4}, as_it_is);
}

TEST_P(TransitionsOf, PartsThatAreNotContiguous) {
  expect_right({5, 7, 4}, [](const at::Tensor& part) { return part.transpose(0, 2).contiguous().transpose(0, 2); });
  expect_right({6, 4, 4}, [](const at::Tensor& part) { return at::cat({part, part}, 1).narrow(1, 0, part.size(1)); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TransitionsOf, testing::Values(2, 3, 4),
                         [](const auto& each) { return fmt::format("{}Ranks", each.param); });

TEST(Transitions, KeepIntegersAndHalfPrecision) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    for (const auto dtype : {at::kLong, at::kInt, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
      const auto whole = at::arange(10).view({5, 2}).to(dtype);
      const auto summand = dtensor::perform(Replicate(), Partial(), whole, 0, group);
      EXPECT_EQ(summand.scalar_type(), dtype);
      const auto sum = dtensor::perform(Partial(), Replicate(), summand, 0, group);
      EXPECT_TRUE(at::allclose(sum, whole, 1e-2)) << sum;
      const auto part = dtensor::perform(Partial(), Shard(0), summand, 0, group);
      EXPECT_TRUE(at::allclose(dtensor::perform(Shard(0), Replicate(), part, 5, group), whole, 1e-2));
    }
  });
}

TEST(Transitions, RefuseWhatIsNoSingleStep) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto part = at::ones({2, 2});
    EXPECT_ERROR(Error, dtensor::perform(Shard(0), Partial(), part, 2, group), "no step S(0) -> P(sum)");
    EXPECT_ERROR(Error, dtensor::perform(Replicate(), Partial("max"), part, 0, group), "no step R -> P(max)");
    EXPECT_ERROR(Error, dtensor::perform(Shard(0), StridedShard(0, 2), part, 2, group), "no step S(0) -> _S(0, 2)");
  });
}

TEST(Transitions, RefusePartsOfWrongSize) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    EXPECT_ERROR(ValueError, dtensor::perform(Shard(0), Replicate(), at::ones({2, 2}), 3, group),
                 "holds 2 elements of dimension 0, but S(0) of 3 elements would be 3");
  });
}

}  // namespace

}  // namespace cohort::test
