// SPDX-License-Identifier: BSD-3-Clause
//
// Graphs for the tests: one that a person can read, and random ones.
#pragma once

#include <cohort/torch/graph.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace cohort::test {

inline GraphValue graph_value(GraphValue::Origin origin, std::string name, std::vector<std::int64_t> sizes,
                              std::string dtype = "f32") {
  GraphValue value{.origin = origin, .name = std::move(name), .sizes = std::move(sizes), .dtype = std::move(dtype)};
  if (value.dtype == "i64") value.element_bytes = 8;
  value.strides.resize(value.sizes.size(), 1);
  for (std::size_t i = value.sizes.size(); i-- > 1;) value.strides[i - 1] = value.strides[i] * value.sizes[i];
  return value;
}

/// A linear layer on four ranks, with its gradient's all_reduce, and the loss of all ranks gathered.
inline Graph linear_step() {
  using Origin = GraphValue::Origin;
  Graph graph;
  graph.values = {
      graph_value(Origin::argument, "", {8, 16}),                // 0
      graph_value(Origin::argument, "", {8}, "i64"),             // 1
      graph_value(Origin::gradient, "fc.weight.grad", {4, 16}),  // 2
      graph_value(Origin::constant, "fc.weight", {4, 16}),       // 3
      graph_value(Origin::constant, "fc.bias", {4}),             // 4
      graph_value(Origin::constant, "", {4, 16}),                // 5: momentum
      graph_value(Origin::result, "", {16, 4}),                  // 6: transposed
      graph_value(Origin::result, "", {8, 4}),                   // 7
      graph_value(Origin::result, "", {}),                       // 8: loss
      graph_value(Origin::result, "", {4}),                      // 9: losses of all ranks
  };
  graph.values[6].strides = {1, 16};
  using Kind = GraphNode::Kind;
  graph.nodes = {
      {.name = "aten::t", .operands = {{"self", {3}}}, .results = {6}},
      {.name = "aten::addmm",
       .operands = {{"self", {4}}, {"mat1", {0}}, {"mat2", {6}}, {"beta", {}, false, "1"}, {"alpha", {}, false, "1"}},
       .results = {7}},
      {.name = "aten::nll_loss_forward",
       .operands = {{"self", {7}}, {"target", {1}}, {"weight"}, {"reduction", {}, false, "1"}},
       .results = {8}},
      {.kind = Kind::collective,
       .name = "all_reduce",
       .operands = {{"in", {2}, true}, {"out", {2}, true}, {"dtype", {}, false, "f32"}, {"op", {}, false, "sum"}},
       .writes = {2},
       .group = "world",
       .group_size = 4,
       .bytes = 256,
       .is_async = true},
      {.kind = Kind::collective,
       .name = "cohort::all_gather_into_tensor",
       .operands = {{"input", {8}}, {"group_size", {}, false, "4"}, {"group", {}, false, "\"world\""}},
       .results = {9},
       .group = "world",
       .group_size = 4,
       .bytes = 16},
      {.kind = Kind::wait, .name = "wait", .operands = {{"work", {2}}}, .writes = {2}},
      {.kind = Kind::host},
      {.name = "aten::_foreach_add_",
       .operands = {{"self", {3, 5}, true}, {"other", {2, 2}, true}, {"alpha", {}, false, "host"}},
       .writes = {3, 5}},
  };
  graph.outputs = {8, 9};
  return graph;
}

/// The same program with its values numbered in another order; arguments keep theirs, which says which is which.
inline Graph renumbered(const Graph& graph, std::mt19937& random) {
  std::vector<std::size_t> order(graph.values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (graph.values[order[i]].origin == GraphValue::Origin::argument) places.push_back(i);
  }
  std::vector<std::size_t> arguments;
  for (const auto place : places) arguments.push_back(order[place]);
  std::sort(arguments.begin(), arguments.end());
  for (std::size_t i = 0; i < places.size(); ++i) order[places[i]] = arguments[i];

  std::vector<std::size_t> number(order.size());
  auto result = graph;
  for (std::size_t i = 0; i < order.size(); ++i) {
    number[order[i]] = i;
    result.values[i] = graph.values[order[i]];
  }
  const auto renumber = [&](std::vector<std::size_t>& list) {
    for (auto& each : list) each = number[each];
  };
  const auto renumber_node = [&](GraphNode& node) {
    for (auto& operand : node.operands) renumber(operand.values);
    renumber(node.results);
    renumber(node.writes);
  };
  for (auto& node : result.nodes) {
    renumber_node(node);
    for (auto& inner : node.body) renumber_node(inner);
  }
  renumber(result.outputs);
  return result;
}

/// Any graph there can be: texts of any bytes, lists of any length; each node makes values of its own.
class RandomGraphs {
 public:
  explicit RandomGraphs(std::uint32_t seed) : random_(seed) {}

  std::mt19937& random() { return random_; }
  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  std::string text() {
    static const std::vector<std::string> usual{"", "sum", "aten::mm", "fc1.weight", "\"world\"", "a b", "[1, 2]"};
    if (below(4) > 0) return usual[below(usual.size())];
    std::string any(below(12), ' ');
    for (auto& c : any) c = static_cast<char>(below(256));
    return any;
  }

  Graph graph() {
    Graph graph;
    const auto groups = below(3);
    for (std::size_t i = 0; i < groups; ++i) {
      graph.groups.push_back({.id = text(), .label = text(), .ranks = {}});
      for (auto n = below(4); n > 0; --n) graph.groups.back().ranks.push_back(static_cast<int>(below(1000)));
    }
    const auto inputs = below(5);
    for (std::size_t i = 0; i < inputs; ++i) graph.values.push_back(value(static_cast<GraphValue::Origin>(below(3))));
    const auto nodes = below(8);
    for (std::size_t i = 0; i < nodes; ++i) {
      auto outer = node(graph, static_cast<GraphNode::Kind>(below(5)));
      if (outer.kind == GraphNode::Kind::distributed) {
        for (auto inner = below(4); inner > 0; --inner) {
          outer.body.push_back(node(graph, static_cast<GraphNode::Kind>(below(4))));
        }
      }
      graph.nodes.push_back(std::move(outer));
    }
    graph.outputs = some_values(graph);
    return graph;
  }

 private:
  GraphValue value(GraphValue::Origin origin) {
    static const std::vector<std::string> dtypes{"f32", "bf16", "i64", "bool", "complex64", "float8_e4m3fn"};
    static const std::vector<std::string> devices{"cpu", "cuda:0", "meta"};
    GraphValue value{.origin = origin, .name = text(), .dtype = dtypes[below(6)], .device = devices[below(3)]};
    value.element_bytes = below(1025);
    const auto dims = below(4);
    for (std::size_t i = 0; i < dims; ++i) {
      value.sizes.push_back(static_cast<std::int64_t>(below(5)));
      value.strides.push_back(static_cast<std::int64_t>(below(100)));
    }
    return value;
  }

  std::vector<std::size_t> some_values(const Graph& graph) {
    std::vector<std::size_t> list;
    if (graph.values.empty()) return list;
    list.resize(below(4));
    for (auto& each : list) each = below(graph.values.size());
    return list;
  }

  GraphNode node(Graph& graph, GraphNode::Kind kind) {
    GraphNode node{.kind = kind, .name = text()};
    const auto operands = below(4);
    for (std::size_t i = 0; i < operands; ++i) {
      node.operands.push_back({.name = text(), .values = some_values(graph), .is_list = below(2) == 0, .text = text()});
    }
    node.writes = some_values(graph);
    const auto results = below(3);
    for (std::size_t i = 0; i < results; ++i) {
      node.results.push_back(graph.values.size());
      graph.values.push_back(value(GraphValue::Origin::result));
    }
    node.group = text();
    node.group_size = static_cast<int>(below(1000));
    node.bytes = below(2) == 0 ? below(4096) : ~below(4096);
    node.is_async = below(2) == 0;
    node.source = text();
    return node;
  }

  std::mt19937 random_;
};

}  // namespace cohort::test
