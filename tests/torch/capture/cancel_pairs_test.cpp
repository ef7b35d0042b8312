// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives that undo or repeat each other go.
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include "support/expect_error.h"
#include "torch/capture/passes_support.h"

namespace cohort::test {
namespace {

using functional::all_gather_tensor;
using functional::reduce_scatter_tensor;

constexpr PassOptions only_pairs{.remove_dead = false, .merge_common = false, .overlap = false, .cancel_pairs = true};

at::Tensor own_part(const at::Tensor& whole, const ProcessGroupPtr& group) {
  const auto rows = whole.size(0) / group->size();
  return whole.narrow(0, group->rank() * rows, rows);
}

TEST(CancelPairs, MakesAnAllReduceOfReduceScatterAndAllGather) {
  with_ranks([](const ProcessGroupPtr& group) {
    for (const auto* reduction : {"sum", "avg", "max"}) {
      const MakeStep make = [&] {
        return [group, reduction](const at::Tensor& x) -> Tensors {
          const auto shard = reduce_scatter_tensor(x * 2, reduction, 0, group);
          return {all_gather_tensor(shard, 0, group).sin()};
        };
      };
      const auto [recorded, optimized, explained] = compare_runs(make, only_pairs, {6, 3}, group->rank());
      EXPECT_EQ(count_of(recorded, "cohort::reduce_scatter_tensor"), 1U);
      EXPECT_EQ(count_of(optimized, "cohort::reduce_scatter_tensor"), 0U) << to_string(optimized);
      EXPECT_EQ(count_of(optimized, "cohort::all_gather_into_tensor"), 0U);
      EXPECT_EQ(count_of(optimized, "cohort::all_reduce"), 1U);
      EXPECT_EQ(count_of(optimized, "cohort::wait_tensor"), 1U);
      EXPECT_NE(explained.find("cancel_pairs: 1 collectives"), std::string::npos) << explained;
    }
  });
}

TEST(CancelPairs, UsesTheOwnPartOfWhatIsGathered) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group, shard = at::ones({2, 3})](const at::Tensor& x) -> Tensors {
        const auto mine = own_part(all_gather_tensor(shard, 0, group), group);
        const auto result = mine.t().sin();
        shard.add_(x.sum());
        return {result, shard};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_pairs, {6, 3}, group->rank());
    EXPECT_EQ(count_of(recorded, "cohort::all_gather_into_tensor"), 1U);
    EXPECT_EQ(count_of(optimized, "cohort::all_gather_into_tensor"), 0U) << to_string(optimized);
    EXPECT_EQ(count_of(optimized, "aten::slice"), 0U);
  });
}

TEST(CancelPairs, GathersUnchangedDataOnce) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        const auto shard = x * 2;
        const auto first = all_gather_tensor(shard, 0, group);
        const auto sine = first.sin();
        const auto second = all_gather_tensor(shard, 0, group);
        return {sine, first + second};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_pairs, {6, 3}, group->rank());
    EXPECT_EQ(count_of(recorded, "cohort::all_gather_into_tensor"), 2U);
    EXPECT_EQ(count_of(optimized, "cohort::all_gather_into_tensor"), 1U) << to_string(optimized);
  });
}

struct KeptCase {
  std::string name;
  std::function<Tensors(const ProcessGroupPtr& group, const ProcessGroupPtr& other, const at::Tensor& x)> step;
  friend void PrintTo(const KeptCase& it, std::ostream* out) { *out << it.name; }
};

class CancelPairsCases : public testing::TestWithParam<KeptCase> {};

TEST_P(CancelPairsCases, KeepsWhatIsNeeded) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto other = group->split_group({0, 1});
    const MakeStep make = [&] {
      return [&group, &other](const at::Tensor& x) { return GetParam().step(group, other, x); };
    };
    const auto runs = compare_runs(make, only_pairs, {6, 3}, group->rank());
    EXPECT_EQ(collectives_of(runs.optimized), collectives_of(runs.recorded));
    EXPECT_EQ(runs.optimized.nodes.size(), runs.recorded.nodes.size());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CancelPairsCases,
    testing::Values(KeptCase{"TheShardIsUsed",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto shard = reduce_scatter_tensor(x, "sum", 0, group);
                               return {all_gather_tensor(shard, 0, group) * 1, shard + 1};
                             }},
                    KeptCase{"TheShardIsWritten",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto shard = functional::wait_tensor(reduce_scatter_tensor(x, "sum", 0, group));
                               shard.select(0, 1).mul_(2);
                               return {all_gather_tensor(shard, 0, group) * 1};
                             }},
                    KeptCase{"TheShardIsReturned",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto shard = reduce_scatter_tensor(x, "sum", 0, group);
                               return {all_gather_tensor(shard, 0, group) * 1, shard};
                             }},
                    KeptCase{"AnotherGroup",
                             [](const auto& group, const auto& other, const at::Tensor& x) -> Tensors {
                               return {all_gather_tensor(reduce_scatter_tensor(x, "sum", 0, group), 0, other) * 1};
                             }},
                    KeptCase{"MoreThanTheOwnPart",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto whole = all_gather_tensor(x, 0, group);
                               return {own_part(whole, group) * 1, whole.sum()};
                             }},
                    KeptCase{"AnotherRanksPart",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               return {all_gather_tensor(x, 0, group).narrow(0, 6 - 6 * group->rank(), 6) * 1};
                             }},
                    KeptCase{"ThePartChangesInBetween",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto y = x + 1;
                               const auto whole = functional::wait_tensor(all_gather_tensor(y, 0, group));
                               y.mul_(2);
                               return {own_part(whole, group) * 1, y};
                             }},
                    KeptCase{"TheOwnPartIsWritten",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto y = x + 1;
                               const auto mine =
                                   own_part(functional::wait_tensor(all_gather_tensor(y, 0, group)), group);
                               mine.mul_(2);
                               return {mine * 1, y * 1};
                             }},
                    KeptCase{"NothingIsUsed",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               all_gather_tensor(x, 0, group);
                               return {x * 1};
                             }},
                    KeptCase{"ChangedDataAreGatheredAgain",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto y = x + 1;
                               const auto first = functional::wait_tensor(all_gather_tensor(y, 0, group));
                               y.mul_(2);
                               return {first + all_gather_tensor(y, 0, group)};
                             }},
                    KeptCase{"TheFirstResultIsGone",
                             [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                               const auto first =
                                   all_gather_tensor(x, 0, group).sum();  // a sharded model gathers again in backward
                               return {first + all_gather_tensor(x, 0, group).sin()};
                             }}),
    [](const auto& it) { return it.param.name; });

/// Whether the pass fires depends on what a rank does with a result: all ranks must agree before they replay.
TEST(CancelPairs, RefusesWhereRanksWouldDiffer) {
  with_ranks([](const ProcessGroupPtr& group) {
    CaptureOptions options;
    options.passes = only_pairs;
    auto step =
        capture([group](const at::Tensor& x) { return all_gather_tensor(x, 0, group).narrow(0, 0, 6) * 1; }, options);
    const auto x = at::ones({6, 3});
    step(x);
    EXPECT_ERROR(CaptureError, step(x), "collective 0 of the step");
  });
}

}  // namespace
}  // namespace cohort::test
