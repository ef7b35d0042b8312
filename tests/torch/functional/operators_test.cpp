// SPDX-License-Identifier: BSD-3-Clause
//
// The operators themselves: called through the dispatcher by name, blocking, and seen by an optimiser.
#include "torch/functional/operators.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/passes/common_subexpression_elimination.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "torch/functional/functional_ranks.h"
#include "torch/functional/issuing_group.h"
#include "torch/functional/on_group.h"
#include "torch/functional/values.h"
#include "torch/functional/work_registry.h"

namespace cohort::functional {
namespace {

using test::all_values;
using test::values_of;
using test::with_named_threads;

class CollectiveOperators : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveOperators, ::testing::Values(1, 2, 3, 4));

TEST_P(CollectiveOperators, BlockingResultsArePlainTensors) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto mine = values_of(group->rank(), {ranks, 2});
    const auto before = mine.clone();
    const auto all = all_values(ranks, {ranks, 2});
    const auto sum = at::stack(all).sum(0);
    const auto& registry = WorkRegistry::instance();

    const auto reduced = on_group::all_reduce(mine, ReduceOp::Kind::sum, group);
    EXPECT_TRUE(reduced.equal(sum));
    EXPECT_FALSE(registry.contains(reduced));
    EXPECT_TRUE(on_group::all_reduce(mine, ReduceOp::Kind::max, group).equal(all.back()));
    EXPECT_TRUE(on_group::all_gather(mine, group).equal(at::cat(all)));
    EXPECT_TRUE(on_group::reduce_scatter(mine, ReduceOp::Kind::sum, group).equal(sum.narrow(0, group->rank(), 1)));
    EXPECT_TRUE(on_group::broadcast(mine, ranks - 1, group).equal(all.back()));
    std::vector<at::Tensor> column;
    for (const auto& each : all) column.push_back(each.narrow(0, group->rank(), 1));
    EXPECT_TRUE(on_group::all_to_all(mine, {}, {}, group).equal(at::cat(column)));
    // Rank r sends r + 1 rows to rank 0, and nothing else.
    std::vector<std::int64_t> in(static_cast<std::size_t>(ranks), 0);
    std::vector<std::int64_t> out(static_cast<std::size_t>(ranks), 0);
    in[0] = group->rank() + 1;
    if (group->rank() == 0) std::iota(out.begin(), out.end(), 1);
    std::vector<at::Tensor> rows;
    for (int rank = 0; rank < ranks; ++rank) {
      rows.push_back(values_of(rank, {rank + 1, 2}).narrow(0, 0, group->rank() == 0 ? rank + 1 : 0));
    }
    EXPECT_TRUE(
        on_group::all_to_all(values_of(group->rank(), {group->rank() + 1, 2}), out, in, group).equal(at::cat(rows)));
    EXPECT_TRUE(mine.equal(before)) << "an input was modified";
  });
}

TEST_P(CollectiveOperators, AsynchronousResultsAreReadyAfterWaitTensor) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto& registry = WorkRegistry::instance();
    auto mine = values_of(group->rank(), {ranks, 2});
    const auto sum = at::stack(all_values(ranks, {ranks, 2})).sum(0);
    const auto result = ops::all_reduce(mine, "SUM", group->id());
    EXPECT_TRUE(registry.contains(result.view(-1)));  // by storage
    EXPECT_TRUE(ops::wait_tensor(result).is_same(result));
    EXPECT_FALSE(registry.contains(result));
    EXPECT_TRUE(result.equal(sum));
    ops::wait_tensor(result);  // idempotent
    const auto version = mine._version();
    EXPECT_TRUE(ops::all_reduce_(mine, "sum", group->id()).is_same(mine));
    EXPECT_GT(mine._version(), version);
    EXPECT_TRUE(ops::wait_tensor(mine).equal(sum));
  });
}

TEST(CollectiveOperator, DrainsAllWorksOfAStorage) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto mine = at::ones({4});
    ops::all_reduce_(mine, "sum", group->id());
    ops::all_reduce_(mine, "sum", group->id());
    ops::wait_tensor(mine.narrow(0, 1, 1));  // drains both
    EXPECT_FALSE(WorkRegistry::instance().contains(mine));
    EXPECT_TRUE(mine.equal(at::full({4}, 4.0)));
  });
}

TEST(CollectiveOperator, NameAnUnknownGroup) {
  EXPECT_ERROR(Error, ops::all_reduce(at::ones({2}), "sum", "nowhere"), "no group is registered as \"nowhere\"");
  with_named_threads(1, [](const ProcessGroupPtr& group) {
    EXPECT_ERROR(Error, ops::all_reduce(at::ones({2}), "mean", group->id()), "mean");
    EXPECT_ERROR(ValueError, ops::all_gather_into_tensor(at::ones({2}), 3, group->id()), "group_size is 3");
  });
}

/// Two equal collectives whose results nobody uses, and waits likewise.
TEST(CollectiveOperator, SurviveAnOptimiser) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%x : Tensor, %op : str, %group : str, %n : int, %xs : Tensor[], %splits : int[]):
  %pure.1 : Tensor = aten::relu(%x)
  %pure.2 : Tensor = aten::relu(%x)
  %a1 : Tensor = cohort::all_reduce(%x, %op, %group)
  %a2 : Tensor = cohort::all_reduce(%x, %op, %group)
  %b1 : Tensor = cohort::all_reduce_(%x, %op, %group)
  %b2 : Tensor = cohort::all_reduce_(%x, %op, %group)
  %c1 : Tensor[] = cohort::all_reduce_coalesced(%xs, %op, %group)
  %c2 : Tensor[] = cohort::all_reduce_coalesced(%xs, %op, %group)
  %d1 : Tensor[] = cohort::all_reduce_coalesced_(%xs, %op, %group)
  %d2 : Tensor[] = cohort::all_reduce_coalesced_(%xs, %op, %group)
  %e1 : Tensor = cohort::all_gather_into_tensor(%x, %n, %group)
  %e2 : Tensor = cohort::all_gather_into_tensor(%x, %n, %group)
  %f1 : Tensor = cohort::all_gather_into_tensor_out(%x, %n, %group, %x)
  %f2 : Tensor = cohort::all_gather_into_tensor_out(%x, %n, %group, %x)
  %g1 : Tensor[] = cohort::all_gather_into_tensor_coalesced(%xs, %n, %group)
  %g2 : Tensor[] = cohort::all_gather_into_tensor_coalesced(%xs, %n, %group)
  %h1 : Tensor = cohort::reduce_scatter_tensor(%x, %op, %n, %group)
  %h2 : Tensor = cohort::reduce_scatter_tensor(%x, %op, %n, %group)
  %i1 : Tensor[] = cohort::reduce_scatter_tensor_coalesced(%xs, %op, %n, %group)
  %i2 : Tensor[] = cohort::reduce_scatter_tensor_coalesced(%xs, %op, %n, %group)
  %j1 : Tensor = cohort::all_to_all_single(%x, %splits, %splits, %group)
  %j2 : Tensor = cohort::all_to_all_single(%x, %splits, %splits, %group)
  %k1 : Tensor = cohort::broadcast(%x, %n, %group)
  %k2 : Tensor = cohort::broadcast(%x, %n, %group)
  %l1 : Tensor = cohort::broadcast_(%x, %n, %group)
  %l2 : Tensor = cohort::broadcast_(%x, %n, %group)
  %m1 : Tensor = cohort::shard_dim_alltoall(%x, %n, %n, %n, %group)
  %m2 : Tensor = cohort::shard_dim_alltoall(%x, %n, %n, %n, %group)
  %w1 : Tensor = cohort::wait_tensor(%a1)
  %w2 : Tensor = cohort::wait_tensor(%a1)
  return (%x)
)IR",
                      graph.get());
  const auto count = [&](const std::string& prefix) {
    std::size_t nodes = 0;
    for (const auto* node : graph->nodes()) {
      if (std::string(node->kind().toQualString()).starts_with(prefix)) ++nodes;
    }
    return nodes;
  };
  ASSERT_EQ(count("cohort::"), 28U);
  torch::jit::EliminateCommonSubexpression(graph);
  EXPECT_EQ(count("cohort::"), 28U);
  torch::jit::EliminateDeadCode(graph);
  EXPECT_EQ(count("cohort::"), 28U);
  EXPECT_EQ(count("aten::"), 0U) << "the passes must have done something";
}

}  // namespace
}  // namespace cohort::functional
