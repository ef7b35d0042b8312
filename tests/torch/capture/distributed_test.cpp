// SPDX-License-Identifier: BSD-3-Clause
//
// Captured steps with distributed tensors: the calls that users make are single nodes, and replays are right.
#include <cohort/torch/capture.h>
#include <cohort/torch/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <string_view>
#include <vector>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

std::vector<const GraphNode*> nodes_named(const Graph& graph, std::string_view name) {
  std::vector<const GraphNode*> found;
  for (const auto& each : graph.nodes) {
    if (each.name == name) found.push_back(&each);
  }
  return found;
}

TEST(CapturedDistributedTensors, HaveOneNodeForFromLocal) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    auto doubled = capture([&](const at::Tensor& x) { return DTensor::from_local(x, mesh, {Shard(0)}) * 2; });
    for (int i = 0; i < 4; ++i) {
      const auto x = torch::full({3, 2}, i + group->rank());
      const DTensor result(doubled(x));
      EXPECT_EQ(result.placements(), Placements{Shard(0)});
      EXPECT_EQ(result.sizes(), (std::vector<std::int64_t>{6, 2}));
      EXPECT_TRUE(at::equal(result.to_local(), x * 2));
    }
    const auto nodes = nodes_named(doubled.graph(), "from_local");
    ASSERT_EQ(nodes.size(), 1U) << doubled.graph();
    EXPECT_TRUE(nodes[0]->body.empty());
    EXPECT_EQ(nodes[0]->operands.at(0).values.size(), 1U);
    EXPECT_EQ(nodes[0]->operands.at(1).text, "[S(0)]");
    EXPECT_EQ(nodes[0]->operands.at(2).text, "[6, 2]");
  });
}

TEST(CapturedDistributedTensors, HaveOneNodeForRedistributeAndToLocal) {
  for (const int ranks : {2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {group->size()}, {}, {.process_group = group});
      auto whole = capture([&](const at::Tensor& x) {
        return DTensor::from_local(x, mesh, {Shard(0)}).redistribute({Replicate()}).to_local();
      });
      for (int i = 0; i < 4; ++i) {
        const auto all = torch::arange(2 * group->size(), torch::kFloat) + i;
        const auto result = whole(all.slice(0, 2 * group->rank(), 2 * group->rank() + 2));
        EXPECT_TRUE(at::equal(result, all)) << i;
      }
      const auto& graph = whole.graph();
      const auto redistribute = nodes_named(graph, "redistribute");
      ASSERT_EQ(redistribute.size(), 1U) << graph;
      EXPECT_EQ(redistribute[0]->kind, GraphNode::Kind::distributed);
      EXPECT_FALSE(redistribute[0]->body.empty());
      EXPECT_FALSE(redistribute[0]->results.empty());
      EXPECT_EQ(nodes_named(graph, "to_local").size(), 1U) << graph;
      EXPECT_EQ(collectives_of(graph, mesh.group()->id()).size(), 1U);
    });
  }
}

}  // namespace
}  // namespace cohort::test
