// SPDX-License-Identifier: BSD-3-Clause
//
// Row GC-13 of the specification for the functional collectives that CaptureRows.Gc13* does not use: exchanges, lists,
// those that write their argument, and those with a gradient.
#include <ATen/ATen.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/functional.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

/// From this rank's x, of two rows for each rank and as many columns as ranks, to a result.
struct FunctionalForm {
  std::string name;
  std::function<at::Tensor(const ProcessGroupPtr&, const at::Tensor&)> run;
  std::string node;       ///< the only collective of the graph
  std::size_t waits = 1;  ///< one for each tensor that it makes or writes
  friend void PrintTo(const FunctionalForm& it, std::ostream* out) { *out << it.name; }
};

/// Rank r gets as many rows from every rank.
std::vector<std::int64_t> rows_for_ranks(const ProcessGroup& group) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(group.size()), 2);
  rows.front() = 1;
  rows.back() = 3;
  return rows;
}
std::vector<std::int64_t> rows_from_ranks(const ProcessGroup& group) {
  const auto rows = rows_for_ranks(group);
  return std::vector<std::int64_t>(rows.size(), rows[static_cast<std::size_t>(group.rank())]);
}

std::vector<FunctionalForm> exchanging_forms() {
  return {
      {"AllToAllSingle",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::all_to_all_single(x * 2, {}, {}, group) + 1;
       },
       "cohort::all_to_all_single"},
      {"UnevenAllToAllSingle",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::all_to_all_single(x * 2, rows_from_ranks(*group), rows_for_ranks(*group), group) + 1;
       },
       "cohort::all_to_all_single"},
      {"PermuteTensor",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         std::vector<std::int64_t> next;
         for (int i = 0; i < group->size(); ++i) next.push_back((i + 1) % group->size());
         return functional::permute_tensor(x * 2, next, group) + 1;
       },
       "cohort::all_to_all_single"},
      {"PermuteTensorToOneRank",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const std::vector<std::int64_t> last(static_cast<std::size_t>(group->size()), group->size() - 1);
         return functional::permute_tensor(x * 2, last, group) + 1;
       },
       "cohort::all_to_all_single"},
      {"ShardDimAlltoall",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::shard_dim_alltoall(x * 2, 0, 1, group) + 1;
       },
       "cohort::shard_dim_alltoall"},
  };
}

std::vector<FunctionalForm> coalesced_forms() {
  return {
      {"AllReduceCoalesced",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto sums = functional::all_reduce_coalesced({x * 2, x.sum(0)}, "sum", group);
         return sums.at(0) + sums.at(1);
       },
       "cohort::all_reduce_coalesced", 2},
      {"AllGatherIntoTensorCoalesced",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto wholes = functional::all_gather_into_tensor_coalesced({x * 2, x.sum(0)}, group);
         return wholes.at(0).sum() + wholes.at(1);
       },
       "cohort::all_gather_into_tensor_coalesced", 2},
      {"ReduceScatterTensorCoalesced",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto parts = functional::reduce_scatter_tensor_coalesced({x * 2, x + 1}, "avg", {0, 1}, group);
         return parts.at(0).sum() + parts.at(1);
       },
       "cohort::reduce_scatter_tensor_coalesced", 2},
  };
}

std::vector<FunctionalForm> writing_forms() {
  return {
      {"AllReduceInPlace",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto y = x * 2;
         return functional::all_reduce_(y, "max", group) + 1;
       },
       "cohort::all_reduce_"},
      {"AllReduceCoalescedInPlace",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto sums = functional::all_reduce_coalesced_({x * 2, x.sum(0)}, "sum", group);
         return sums.at(0) + sums.at(1);
       },
       "cohort::all_reduce_coalesced_", 2},
      {"BroadcastInPlace",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto y = x * 2;
         return functional::broadcast_(y, group->size() - 1, group) + 1;
       },
       "cohort::broadcast_"},
      {"AllGatherIntoTensorOut",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto out = at::zeros({x.size(0) * group->size(), x.size(1)});
         return functional::all_gather_into_tensor_out(x * 2, group, out) + 1;
       },
       "cohort::all_gather_into_tensor_out"},
      // The given tensor knows nothing of the collective: the step waits for it.
      {"AllReduceInPlaceOfAWaitedTensor",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         const auto y = x * 2;
         functional::all_reduce_(y, "sum", group);
         return functional::wait_tensor(y) + 1;
       },
       "cohort::all_reduce_", 2},
  };
}

class CapturedFunctional : public testing::TestWithParam<FunctionalForm> {};

TEST_P(CapturedFunctional, IsACollectiveAndItsWaits) {
  for (const int size : {2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      const auto& form = GetParam();
      const std::int64_t ranks = group->size();
      int runs = 0;
      auto step = capture([&](const at::Tensor& x) {
        ++runs;
        return form.run(group, x);
      });
      Numbers numbers(group->rank());
      for (int i = 0; i < 6; ++i) {
        const auto x = numbers({2 * ranks, ranks});
        const auto before = x.clone();
        const auto result = step(x);
        expect_same_bits(result, form.run(group, x), form.name + ", step " + std::to_string(i));
        expect_same_bits(x, before, "the argument");
      }
      EXPECT_EQ(runs, 2) << step.explain();
      const auto& graph = step.graph();
      EXPECT_EQ(count_nodes(graph, form.node), 1U) << graph;
      EXPECT_EQ(count_nodes(graph, GraphNode::Kind::collective), 1U) << graph;
      EXPECT_EQ(count_nodes(graph, GraphNode::Kind::wait), form.waits) << graph;
      const auto is_collective = [](const GraphNode& each) { return each.kind == GraphNode::Kind::collective; };
      const auto is_wait = [](const GraphNode& each) { return each.kind == GraphNode::Kind::wait; };
      const auto collective = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_collective);
      ASSERT_TRUE(collective != graph.nodes.end());
      EXPECT_EQ(collective->group, group->id());
      EXPECT_EQ(std::count_if(graph.nodes.begin(), collective, is_wait), 0) << graph;
    });
    EXPECT_EQ(functional::unwaited_collectives(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Gc13Exchanging, CapturedFunctional, testing::ValuesIn(exchanging_forms()),
                         [](const auto& it) { return it.param.name; });
INSTANTIATE_TEST_SUITE_P(Gc13Coalesced, CapturedFunctional, testing::ValuesIn(coalesced_forms()),
                         [](const auto& it) { return it.param.name; });
INSTANTIATE_TEST_SUITE_P(Gc13Writing, CapturedFunctional, testing::ValuesIn(writing_forms()),
                         [](const auto& it) { return it.param.name; });

/// A collective with a gradient, and what its backward issues.
struct DifferentiableForm {
  std::string name;
  std::function<at::Tensor(const ProcessGroupPtr&, const at::Tensor&)> run;
  std::string forward;
  std::string backward;
  friend void PrintTo(const DifferentiableForm& it, std::ostream* out) { *out << it.name; }
};

std::vector<DifferentiableForm> differentiable_forms() {
  return {
      {"AllGatherTensor",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::all_gather_tensor_autograd(x, 0, group);
       },
       "cohort::all_gather_into_tensor", "cohort::reduce_scatter_tensor"},
      {"AllGatherTensorOfColumns",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::all_gather_tensor_autograd(x, 1, group);
       },
       "cohort::all_gather_into_tensor", "cohort::reduce_scatter_tensor"},
      {"ReduceScatterTensor",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::reduce_scatter_tensor_autograd(x, "sum", 0, group);
       },
       "cohort::reduce_scatter_tensor", "cohort::all_gather_into_tensor"},
      {"ReduceScatterTensorOfColumns",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::reduce_scatter_tensor_autograd(x, "sum", 1, group);
       },
       "cohort::reduce_scatter_tensor", "cohort::all_gather_into_tensor"},
      {"AllToAllSingle",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::all_to_all_single_autograd(x, {}, {}, group);
       },
       "cohort::all_to_all_single", "cohort::all_to_all_single"},
      {"UnevenAllToAllSingle",
       [](const ProcessGroupPtr& group, const at::Tensor& x) {
         return functional::all_to_all_single_autograd(x, rows_from_ranks(*group), rows_for_ranks(*group), group);
       },
       "cohort::all_to_all_single", "cohort::all_to_all_single"},
  };
}

class CapturedDifferentiable : public testing::TestWithParam<DifferentiableForm> {};

TEST_P(CapturedDifferentiable, HasItsBackwardInTheStep) {
  for (const int size : {2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      const auto& form = GetParam();
      const std::int64_t ranks = group->size();
      const auto leaf = at::full({ranks}, 0.5).set_requires_grad(true);
      const auto body = [&](const at::Tensor& x) {
        const auto output = form.run(group, leaf * x);
        return torch::autograd::grad({output.pow(3).sum()}, {leaf}).front();
      };
      int runs = 0;
      auto step = capture([&](const at::Tensor& x) {
        ++runs;
        return body(x);
      });
      Numbers numbers(group->rank());
      for (int i = 0; i < 6; ++i) {
        const auto x = numbers({2 * ranks, ranks});
        const auto result = step(x);
        expect_same_bits(result, body(x), form.name + ", step " + std::to_string(i));
      }
      EXPECT_EQ(runs, 2) << step.explain();
      const auto& graph = step.graph();
      const auto& nodes = graph.nodes;
      std::vector<std::string> collectives;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].kind != GraphNode::Kind::collective) continue;
        collectives.push_back(nodes[i].name);
        EXPECT_EQ(nodes[i].group, group->id());
        const auto waits_for_it = [&](const GraphNode& each) {
          return each.kind == GraphNode::Kind::wait && each.operands.at(0).values == nodes[i].results;
        };
        EXPECT_TRUE(std::any_of(nodes.begin() + static_cast<std::ptrdiff_t>(i), nodes.end(), waits_for_it))
            << "behind node " << i << " of " << graph;
      }
      EXPECT_THAT(collectives, testing::ElementsAre(form.forward, form.backward)) << graph;
    });
    EXPECT_EQ(functional::unwaited_collectives(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Gc13, CapturedDifferentiable, testing::ValuesIn(differentiable_forms()),
                         [](const auto& it) { return it.param.name; });

}  // namespace
}  // namespace cohort::test
