// SPDX-License-Identifier: BSD-3-Clause
//
// Pieces of a forward graph for DDP's buckets.
#include <cohort/error.h>
#include <cohort/torch/graph_partition.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/example_graphs.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using Origin = GraphValue::Origin;
using testing::ElementsAre;
using testing::HasSubstr;

/// A chain of layers, each with a weight of so many floats, or with none for 0; an activation behind each.
struct Chain {
  Graph graph;
  std::vector<std::size_t> weights;
};

Chain chain_of(const std::vector<std::int64_t>& sizes) {
  Chain chain;
  auto& graph = chain.graph;
  const auto add = [&](Origin origin, std::int64_t size) {
    graph.values.push_back(graph_value(origin, "", {size}));
    return graph.values.size() - 1;
  };
  auto x = add(Origin::argument, 1);
  for (const auto size : sizes) {
    GraphNode layer{.name = "layer", .operands = {{"self", {x}}}};
    if (size > 0) {
      chain.weights.push_back(add(Origin::constant, size));
      layer.operands.push_back({"weight", {chain.weights.back()}});
    }
    layer.results = {add(Origin::result, 1)};
    x = add(Origin::result, 1);
    graph.nodes.push_back(layer);
    graph.nodes.push_back({.name = "relu", .operands = {{"self", layer.results}}, .results = {x}});
  }
  graph.outputs = {x};
  return chain;
}

std::vector<std::pair<std::size_t, std::size_t>> ranges_of(const GraphPartition& partition) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const auto& each : partition.pieces) ranges.emplace_back(each.begin, each.end);
  return ranges;
}

using Range = std::pair<std::size_t, std::size_t>;

TEST(BucketPartition, FillsBucketsFromTheLastNode) {
  const auto [graph, weights] = chain_of({100, 100, 100, 100});  // 400 bytes each
  const auto found = partition_by_buckets(graph, {.parameters = weights, .first_cap = 400, .cap = 800});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 2), Range(2, 6), Range(6, 8)));
  EXPECT_THAT(found.pieces[0].parameters, ElementsAre(weights[0]));
  EXPECT_THAT(found.pieces[1].parameters, ElementsAre(weights[2], weights[1]));
  EXPECT_THAT(found.pieces[2].parameters, ElementsAre(weights[3]));
  EXPECT_EQ(found.pieces[1].bytes, 800U);
  EXPECT_TRUE(found.warnings.empty());
}

TEST(BucketPartition, DoesNotCutWhatFitsIntoOneBucket) {
  const auto [graph, weights] = chain_of({100, 100});
  const auto found = partition_by_buckets(graph, {.parameters = weights});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 4)));
  EXPECT_EQ(found.pieces[0].bytes, 800U);
}

TEST(BucketPartition, MergesALeadingBucketWithoutParameters) {
  const auto [graph, weights] = chain_of({0, 100, 100});
  const auto found = partition_by_buckets(graph, {.parameters = weights, .first_cap = 400, .cap = 400});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 4), Range(4, 6)));
}

TEST(BucketPartition, CountsOnlyParametersThatAreReducedAndEachOnce) {
  auto [graph, weights] = chain_of({100, 100, 100});
  graph.nodes[0].operands[1].values = {weights[2]};  // the last layer's, once more
  const auto found = partition_by_buckets(graph, {.parameters = {weights[2]}, .first_cap = 400, .cap = 400});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 6)));
  EXPECT_EQ(found.pieces[0].bytes, 400U);
}

TEST(BucketPartition, LooksIntoTheBodiesOfNodes) {
  auto [graph, weights] = chain_of({100, 100});
  auto inner = graph.nodes[2];
  graph.nodes[2].operands.pop_back();
  graph.nodes[2].body = {inner};
  const auto found = partition_by_buckets(graph, {.parameters = weights, .first_cap = 400, .cap = 400});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 2), Range(2, 4)));
}

TEST(BucketPartition, KeepsToTheForwardNodes) {
  auto [graph, weights] = chain_of({100, 100});
  const auto forward = graph.nodes.size();
  graph.values.push_back(graph_value(Origin::result, "", {1}));
  graph.nodes.push_back(
      {.name = "backward", .operands = {{"weight", {weights[0]}}}, .results = {graph.values.size() - 1}});
  const auto found =
      partition_by_buckets(graph, {.parameters = weights, .nodes = forward, .first_cap = 400, .cap = 400});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 2), Range(2, 4)));
}

TEST(BucketPartition, ExtendsABucketWithoutOutputAndSaysSo) {
  auto [graph, weights] = chain_of({100, 100, 100});
  // The last layer's result is used by nobody; the step returns what the second one makes.
  graph.outputs = {graph.nodes[3].results[0]};
  const auto found = partition_by_buckets(graph, {.parameters = weights, .first_cap = 400, .cap = 400});
  EXPECT_THAT(ranges_of(found), ElementsAre(Range(0, 2), Range(2, 3), Range(3, 6)));
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("bucket 1 reached its cap, but nothing outside uses")));
  EXPECT_THAT(found.warnings[0], HasSubstr("extended by 1 node, to 400 B"));
}

TEST(BucketPartition, RefusesWhatMakesNoSense) {
  const auto [graph, weights] = chain_of({100});
  EXPECT_ERROR(AssertionError, partition_by_buckets(graph, {.parameters = weights, .first_cap = 2, .cap = 1}),
               "the first bucket's cap of 2 bytes is larger than the cap of 1 bytes");
  EXPECT_ERROR(ValueError, partition_by_buckets(graph, {.parameters = {99}}), "parameter 99 is no value");
}

TEST(BucketPartition, HasNoPieceOfAnEmptyGraph) {
  EXPECT_TRUE(partition_by_buckets({}, {}).pieces.empty());
}

}  // namespace
}  // namespace cohort::test
