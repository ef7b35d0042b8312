// SPDX-License-Identifier: BSD-3-Clause
//
// Rows GC-38, GC-41 and GC-43 of the specification on steps of whole models: distributed parameters on a mesh, and data
// parallelism.
#include <ATen/ATen.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/graph_partition.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/parallelize.h>
#include <cohort/torch/placement.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "torch/capture/guards_support.h"
#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using torch::nn::Sequential;

/// The ids of the mesh's groups become the names of its dimensions.
void name_groups(GraphNode& node, const DeviceMesh& mesh) {
  for (const auto& name : mesh.dim_names()) {
    const auto& id = mesh.group(name)->id();
    if (node.group == id) node.group = name;
    for (auto& operand : node.operands) {
      if (operand.text == id || operand.text == '"' + id + '"') operand.text = name;
    }
  }
  for (auto& each : node.body) name_groups(each, mesh);
}

/// Tensor parallelism in pairs and data parallelism across them: parameters, gradients and the optimizer's state are
/// distributed tensors, and the batch is sharded over "dp".
Graph graph_on_mesh_of(const ProcessGroupPtr& group) {
  const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
  Sequential net(torch::nn::Linear(6, 12), torch::nn::ReLU(), torch::nn::Linear(12, 3));
  Numbers(7).fill(net->parameters());
  distribute_module(*net, mesh, [](const std::string& name, const at::Tensor&) {
    if (name == "0.weight" || name == "0.bias") return Placements{Replicate(), Shard(0)};
    return name == "2.weight" ? Placements{Replicate(), Shard(1)} : Placements{Replicate(), Replicate()};
  });
  optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto step = capture(
      [&](const at::Tensor& x, const at::Tensor& y) {
        optimizer.zero_grad();
        const at::Tensor input = DTensor::from_local(x, mesh, {Shard(0), Replicate()});
        const auto loss = at::mse_loss(net->forward(input), DTensor::from_local(y, mesh, {Shard(0), Replicate()}));
        loss.backward();
        optimizer.step();
        return DTensor(loss).full_tensor();
      },
      {.watch = {net, optimizer}});
  const auto x = at::ones({4, 6});
  const auto y = at::ones({4, 3});
  for (int i = 0; i < 6; ++i) step(x, y);
  auto graph = step.graph();
  for (auto& each : graph.nodes) name_groups(each, mesh);
  return graph;
}

TEST(CaptureRows, Gc38ARecordingOnAMeshOfAFakeGroupEqualsThatOnARealOne) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto real = graph_on_mesh_of(group);
    const auto fake = graph_on_mesh_of(fake_group(group->rank(), group->size()));
    EXPECT_EQ(first_difference(real, fake), "") << real << fake;
    for (const auto* const name : {"dp", "tp"}) {
      EXPECT_FALSE(collectives_of(real, name).empty()) << name << "\n" << real;
      EXPECT_EQ(collectives_of(real, name), collectives_of(fake, name));
    }
  });
}

/// The values of the graph that are parameters of the wrapper, which alone is watched.
std::vector<std::size_t> parameters_in(const Graph& graph) {
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const auto& value = graph.values[i];
    if (value.origin == GraphValue::Origin::constant && !value.name.empty()) parameters.push_back(i);
  }
  return parameters;
}

std::vector<std::string> names_in(const Graph& graph, const GraphPiece& piece) {
  std::vector<std::string> names;
  for (const auto value : piece.parameters) names.push_back(graph.values[value].name);
  return names;
}

TEST(CaptureRows, Gc41ThePiecesOfACapturedStepHaveTheParametersOfItsLayers) {
  using testing::UnorderedElementsAre;
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    // 224, 288 and 108 bytes of parameters.
    Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8), torch::nn::Tanh(),
                   torch::nn::Linear(8, 3));
    Numbers(7).fill(net->parameters());
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0002});
    auto step = capture(
        [&](const at::Tensor& x) {
          ddp.zero_grad();
          const auto loss = ddp.forward(x).pow(2).sum();
          loss.backward();
          return loss;
        },
        {.watch = {ddp}});
    Numbers numbers(group->rank());
    for (int i = 0; i < 6; ++i) step(numbers({5, 6}));
    const auto& graph = step.graph();
    const auto parameters = parameters_in(graph);
    ASSERT_EQ(parameters.size(), 6U) << graph;
    // Forward ends with the loss; backward has sums as well, for the biases.
    const auto is_sum = [](const GraphNode& each) { return each.name.starts_with("aten::sum"); };
    const auto last = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_sum);
    ASSERT_TRUE(last != graph.nodes.end()) << graph;
    const auto forward = static_cast<std::size_t>(last - graph.nodes.begin()) + 1;

    const auto found =
        partition_by_buckets(graph, {.parameters = parameters, .nodes = forward, .first_cap = 100, .cap = 200});
    EXPECT_TRUE(found.warnings.empty()) << testing::PrintToString(found.warnings);
    const auto& pieces = found.pieces;
    ASSERT_EQ(pieces.size(), 3U) << graph;
    EXPECT_THAT(names_in(graph, pieces[0]), UnorderedElementsAre("module.0.weight", "module.0.bias"));
    EXPECT_THAT(names_in(graph, pieces[1]), UnorderedElementsAre("module.2.weight", "module.2.bias"));
    EXPECT_THAT(names_in(graph, pieces[2]), UnorderedElementsAre("module.4.weight", "module.4.bias"));
    EXPECT_EQ(pieces[0].bytes, 224U);
    EXPECT_EQ(pieces[1].bytes, 288U);
    EXPECT_EQ(pieces[2].bytes, 108U);
    EXPECT_EQ(pieces[0].begin, 0U);
    EXPECT_EQ(pieces[0].end, pieces[1].begin);
    EXPECT_EQ(pieces[1].end, pieces[2].begin);
    EXPECT_EQ(pieces[2].end, forward);

    // With the caps of a user who gave none, everything is in one.
    const auto whole = partition_by_buckets(graph, {.parameters = parameters, .nodes = forward});
    ASSERT_EQ(whole.pieces.size(), 1U);
    EXPECT_EQ(whole.pieces[0].parameters.size(), 6U);
    EXPECT_EQ(whole.pieces[0].bytes, 620U);
  });
}

TEST(CaptureRows, Gc43RanksIssueTheSameCollectivesInTheSameOrder) {
  for (const int size : {2, 4}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      Sequential net(torch::nn::Linear(6, 12), torch::nn::BatchNorm1d(12), torch::nn::ReLU(), torch::nn::Linear(12, 3));
      Numbers(7).fill(net->parameters());
      DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
      optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      auto step = capture(
          [&](const at::Tensor& x, const at::Tensor& y) {
            optimizer.zero_grad();
            const auto loss = at::mse_loss(ddp.forward(x), y);
            loss.backward();
            optimizer.step();
            return loss;
          },
          {.watch = {ddp, optimizer}});
      Numbers numbers(group->rank());
      for (int i = 0; i < 8; ++i) {
        const auto x = numbers({5, 6});
        step(x, numbers({5, 3}));
      }
      EXPECT_THAT(step.explain(), testing::HasSubstr("replayed"));
      const auto mine = collectives_of(step.graph(), group->id());
      EXPECT_GE(mine.size(), 3U) << "buffers and several buckets:\n" << step.graph();
      EXPECT_THAT(mine, testing::Contains(testing::StartsWith("all_reduce f32")));
      const auto lines =
          std::accumulate(mine.begin(), mine.end(), std::string(),
                          [](const std::string& all, const std::string& each) { return all + each + '\n'; });
      EXPECT_THAT(group->all_gather_bytes(lines), testing::Each(lines));
    });
  }
}

}  // namespace
}  // namespace cohort::test
