// SPDX-License-Identifier: BSD-3-Clause
//
// Graphs printed, compared, written and read, without libtorch. The printed forms are compared as a whole, so that a
// change of them is seen.
#include <cohort/error.h>
#include <cohort/torch/graph.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "graph/example_graphs.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int random_graphs = 500;

TEST(PrintedGraph, ShowsCommunicationAndWrites) {
  EXPECT_EQ(to_string(linear_step()), R"(graph on cpu: 8 nodes, 2 collectives (272 B), 1 wait, 1 host action
  on "world" (4 ranks): 1 all_reduce (256 B), 1 all_gather_single (16 B)
inputs:
  %arg0          : f32[8, 16]
  %arg1          : i64[8]
  @fc.weight.grad: f32[4, 16]
  @fc.weight     : f32[4, 16]
  @fc.bias       : f32[4]
  @const0        : f32[4, 16]
nodes:
  0  %6: f32[16, 4] strides [1, 16] = aten::t(@fc.weight: f32[4, 16])
  1  %7: f32[8, 4]                  = aten::addmm(@fc.bias: f32[4], %arg0: f32[8, 16], %6: f32[16, 4], beta=1, alpha=1)
  2  %8: f32[]                      = aten::nll_loss_forward(%7: f32[8, 4], %arg1: i64[8], weight=none, reduction=1)
  3  @fc.weight.grad!               = all_reduce(@fc.weight.grad: f32[4, 16], sum) on "world" (4 ranks, 256 B), async
  4  %9: f32[4]                     = cohort::all_gather_into_tensor(%8: f32[]) on "world" (4 ranks, 16 B)
  5  @fc.weight.grad!               = wait(@fc.weight.grad: f32[4, 16])
  6                                   host
  7  @fc.weight!, @const0!          = aten::_foreach_add_([@fc.weight: f32[4, 16], @const0: f32[4, 16]], [@fc.weight.grad: f32[4, 16], @fc.weight.grad: f32[4, 16]], alpha=host)
returns %8, %9
)");
}

TEST(PrintedGraph, NamesTheGroupsOfMeshes) {
  auto graph = linear_step();
  graph.groups = {{.id = "world", .label = "mesh_dp", .ranks = {0, 1, 2, 3}}};
  EXPECT_THAT(to_string(graph), HasSubstr("on \"world\", mesh_dp, (4 ranks): 1 all_reduce"));
}

TEST(PrintedGraph, OfNothing) {
  std::ostringstream out;
  out << Graph();
  EXPECT_EQ(out.str(), "graph: 0 nodes\n");
}

TEST(PrintedGraph, ShowsDevicesWhereThereAreSeveralAndUnusedInputs) {
  Graph graph;
  graph.values = {graph_value(GraphValue::Origin::argument, "", {2}),
                  graph_value(GraphValue::Origin::constant, "w", {})};
  graph.values[1].device = "cuda:1";
  graph.outputs = {0};
  EXPECT_EQ(to_string(graph), R"(graph: 0 nodes
inputs:
  %arg0: f32[2] on cpu
  @w   : f32[] on cuda:1, unused
returns %arg0
)");
}

TEST(PrintedGraph, CutsLongListsAndConstants) {
  Graph graph;
  for (int i = 0; i < 12; ++i) graph.values.push_back(graph_value(GraphValue::Origin::constant, "", {1}));
  graph.nodes = {{.name = "aten::cat",
                  .operands = {{"tensors", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, true},
                               {"why", {}, false, std::string(119, 'x') + "é" + std::string(100, 'y')}}}};
  const auto text = to_string(graph);
  EXPECT_THAT(text, HasSubstr("@const5: f32[1], ... 6 more], why=" + std::string(119, 'x') + "... (221 characters)"));
  EXPECT_THAT(text, Not(HasSubstr("yy")));
}

TEST(PrintedGraph, NamesEveryValueDifferentlyAndOnOneLine) {
  Graph graph;
  graph.values = {
      graph_value(GraphValue::Origin::constant, "w", {}), graph_value(GraphValue::Origin::constant, "w", {}),
      graph_value(GraphValue::Origin::constant, "a b\n\"c\"", {}),
      graph_value(GraphValue::Origin::constant, "const0", {}), graph_value(GraphValue::Origin::constant, "", {})};
  graph.outputs = {0, 1, 2, 3, 4};
  EXPECT_THAT(to_string(graph), HasSubstr(R"(returns @w, @w#1, @"a b\n\"c\"", @const0, @const0#4)"));
}

TEST(PrintedGraph, HasOneLineForEachNodeOfAnyGraph) {
  RandomGraphs graphs(1);
  for (int i = 0; i < random_graphs; ++i) {
    const auto graph = graphs.graph();
    const auto text = to_string(graph);
    std::istringstream lines(text.substr(std::min(text.find("nodes:\n"), text.size())));
    std::string line;
    std::getline(lines, line);
    for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
      std::getline(lines, line);
      EXPECT_TRUE(line.starts_with("  " + std::to_string(node) + "  ")) << text;
      for (std::size_t inner = 0; inner < graph.nodes[node].body.size(); ++inner) {
        std::getline(lines, line);
        EXPECT_TRUE(line.starts_with("  |  ")) << text;
      }
    }
  }
}

/// A linear layer whose result is gathered.
Graph redistribution() {
  Graph graph;
  graph.values = {graph_value(GraphValue::Origin::argument, "", {4, 8}),
                  graph_value(GraphValue::Origin::result, "", {8, 8}), graph_value(GraphValue::Origin::result, "", {})};
  graph.nodes = {{.kind = GraphNode::Kind::distributed,
                  .name = "redistribute",
                  .operands = {{"self", {0}}, {"from", {}, false, "[S(0)]"}, {"to", {}, false, "[R]"}},
                  .results = {1}},
                 {.name = "aten::sum", .operands = {{"self", {1}}}, .results = {2}}};
  graph.nodes[0].body = {{.kind = GraphNode::Kind::collective,
                          .name = "cohort::all_gather_into_tensor",
                          .operands = {{"input", {0}}},
                          .results = {1},
                          .group = "tp",
                          .group_size = 2,
                          .bytes = 256},
                         {.kind = GraphNode::Kind::wait, .name = "cohort::wait_tensor", .operands = {{"tensor", {1}}}}};
  graph.outputs = {2};
  return graph;
}

TEST(GraphBodies, ArePrintedBelowTheirNode) {
  auto graph = redistribution();
  graph.nodes[1].source = "train.cpp:41";
  EXPECT_EQ(to_string(graph), R"(graph on cpu: 2 nodes, 1 collective (256 B), 1 wait
  on "tp" (2 ranks): 1 all_gather_single (256 B)
inputs:
  %arg0: f32[4, 8]
nodes:
  0  %1: f32[8, 8] = redistribute(%arg0: f32[4, 8], from=[S(0)], to=[R])
  |  %1: f32[8, 8] = cohort::all_gather_into_tensor(%arg0: f32[4, 8]) on "tp" (2 ranks, 256 B)
  |                  cohort::wait_tensor(%1: f32[8, 8])
  1  %2: f32[]     = aten::sum(%1: f32[8, 8])  # train.cpp:41
returns %2
)");
}

TEST(GraphBodies, CountAsTheirNodes) {
  const auto graph = redistribution();
  EXPECT_THAT(collectives_of(graph, "tp"), ElementsAre("all_gather_single f32, 256 bytes"));
  EXPECT_EQ(all_nodes(graph).size(), 4U);
  EXPECT_EQ(all_nodes(graph)[1]->name, "cohort::all_gather_into_tensor");
  EXPECT_THAT(to_dot(graph), HasSubstr("node0 -> node1"));
}

TEST(GraphBodies, AreCompared) {
  auto other = redistribution();
  other.nodes[0].body[0].bytes = 255;
  EXPECT_EQ(
      first_difference(redistribution(), other),
      "node 0: redistribute has a body whose node 0: cohort::all_gather_into_tensor moves 256 bytes in one and 255 "
      "in the other");
  other.nodes[0].body.pop_back();
  EXPECT_THAT(first_difference(redistribution(), other), HasSubstr("consists of 2 nodes in one and 1 in the other"));
}

TEST(GraphBodies, BelongToDistributedNodesAlone) {
  auto graph = redistribution();
  graph.nodes[0].kind = GraphNode::Kind::op;
  EXPECT_ERROR(ValueError, read_graph(serialize(graph)), "has a body");
}

TEST(GraphText, IsAsDocumented) {
  auto graph = linear_step();
  graph.nodes.resize(4);
  graph.nodes.erase(graph.nodes.begin() + 1, graph.nodes.begin() + 3);
  graph.nodes[0].source = "train.cpp:41";
  graph.nodes[0].operands.push_back({"note", {}, false, "say \"x\\y\"\n\t"});
  EXPECT_EQ(serialize(graph), R"(cohort graph 1
value argument f32 4 cpu [8,16] [16,1] ""
value argument i64 8 cpu [8] [1] ""
value gradient f32 4 cpu [4,16] [16,1] "fc.weight.grad"
value constant f32 4 cpu [4,16] [16,1] "fc.weight"
value constant f32 4 cpu [4] [1] "fc.bias"
value constant f32 4 cpu [4,16] [16,1] ""
value result f32 4 cpu [16,4] [1,16] ""
value result f32 4 cpu [8,4] [4,1] ""
value result f32 4 cpu [] [] ""
value result f32 4 cpu [4] [1] ""
node op "aten::t" [6] [] "" 0 0 - "train.cpp:41"
operand "self" - [3] ""
operand "note" - [] "say \"x\\y\"\n\x09"
node collective "all_reduce" [] [2] "world" 4 256 async ""
operand "in" list [2] ""
operand "out" list [2] ""
operand "dtype" - [] "f32"
operand "op" - [] "sum"
outputs [8,9]
end
)");
  EXPECT_EQ(read_graph(serialize(graph)), graph);
}

TEST(GraphText, GivesEveryGraphBack) {
  RandomGraphs graphs(2);
  for (int i = 0; i < random_graphs; ++i) {
    const auto graph = graphs.graph();
    const auto text = serialize(graph);
    ASSERT_EQ(read_graph(text), graph) << text;
  }
}

TEST(GraphText, IsRefusedWhereverItIsCut) {
  const auto text = serialize(linear_step());
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(read_graph(text.substr(0, length)), ValueError) << length;
  }
}

struct Refused {
  std::string name;
  std::string from;  ///< what is replaced in the text of linear_step()
  std::string to;
  std::string message;
};

class RefusedGraphText : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedGraphText, NamesTheLine) {
  auto text = serialize(linear_step());
  const auto place = text.find(GetParam().from);
  ASSERT_NE(place, std::string::npos);
  text.replace(place, GetParam().from.size(), GetParam().to);
  EXPECT_ERROR(ValueError, read_graph(text), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedGraphText,
    ::testing::Values(
        Refused{"Version", "graph 1", "graph 2",
                "line 1 of a captured graph: the graph was written by another version"},
        Refused{"Beginning", "cohort", "Cohort", "line 1 of a captured graph: the text does not begin as a graph does"},
        Refused{"Origin", "value argument", "value guess", "line 2 of a captured graph: one of argument, gradient, "},
        Refused{"Device", "4 cpu", "4 c\tu", "line 2 of a captured graph: the name of a dtype or device"},
        Refused{"NoDevice", "4 cpu", "4 ", "line 2 of a captured graph: a field is empty"},
        Refused{"ElementBytes", "f32 4", "f32 1025", "line 2 of a captured graph: an element has too many bytes"},
        Refused{"NegativeSize", "[8,16]", "[8,-16]", "line 2 of a captured graph: a number is negative"},
        Refused{"HugeSize", "[8,16]", "[8,99999999999999999999]", "line 2 of a captured graph: a number is malformed"},
        Refused{"HugeProduct", "[8,16]", "[4611686018427387904,16]",
                "line 2 of a captured graph: the tensor has too many"},
        Refused{"HugeProductOfSmallSizes", "[8,16]", "[4294967296,4294967296]", "the tensor has too many"},
        Refused{"EmptyHugeProduct", "[8,16] [16,1]", "[0,4611686018427387904,16] [0,0,0]", "the tensor has too many"},
        Refused{"Strides", "[16,1]", "[1]", "line 2 of a captured graph: there are not as many strides as sizes"},
        Refused{"List", "[8,16]", "8,16", "line 2 of a captured graph: a list in brackets is expected"},
        Refused{"EmptyElement", "[8,16]", "[8,]", "line 2 of a captured graph: a number is malformed"},
        Refused{"Quotes", "\"fc.bias\"", "fc.bias", "line 6 of a captured graph: a text in quotes is expected"},
        Refused{"OpenQuotes", "\"fc.bias\"", "\"fc.bias", "line 6 of a captured graph: a text in quotes does not end"},
        Refused{"OpenEscape", "\"fc.bias\"", "\"fc.bias\\",
                "line 6 of a captured graph: a text in quotes does not end"},
        Refused{"UnknownEscape", "\"fc.bias\"", "\"\\q\"", "line 6 of a captured graph: an escape is not known"},
        Refused{"BadEscape", "\"fc.bias\"", "\"\\xg0\"",
                "line 6 of a captured graph: an escape has no hexadecimal number"},
        Refused{"More", "\"fc.bias\"", "\"fc.bias\" ", "line 6 of a captured graph: there is more in the line"},
        Refused{"NoSpace", "cpu [8,16] [16,1] \"\"", "cpu [8,16] [16,1]\"\"",
                "line 2 of a captured graph: a list in brack"},
        Refused{"Kind", "node op", "node opp", "line 12 of a captured graph: one of op, collective, wait, host"},
        Refused{"ValueOfOperand", "- [3] ", "- [10] ",
                "line 13 of a captured graph: there is no value 10: the graph has 10"},
        Refused{"ValueOfResult", "\"aten::t\" [6]", "\"aten::t\" [11]",
                "line 12 of a captured graph: there is no value 11"},
        Refused{"GroupSize", "\"world\" 4", "\"world\" 4000000000", "a number is malformed or out of range"},
        Refused{"Async", "256 async", "256 later", "one of -, async is expected"},
        Refused{"Unknown", "outputs", "results", "'outputs' is expected"},
        Refused{"ValueOfOutput", "outputs [8,9]", "outputs [8,9,10]", "there is no value 10"},
        Refused{"After", "end\n", "end\n\n", "there is text after the end"}),
    [](const auto& test) { return test.param.name; });

struct Changed {
  std::string name;
  std::function<void(Graph&)> change;
  std::string difference;
};

class ChangedGraph : public ::testing::TestWithParam<Changed> {};

TEST_P(ChangedGraph, IsDescribed) {
  const auto graph = linear_step();
  auto other = graph;
  GetParam().change(other);
  EXPECT_EQ(first_difference(graph, other), GetParam().difference);
}

INSTANTIATE_TEST_SUITE_P(
    All, ChangedGraph,
    ::testing::Values(
        Changed{"Constant", [](Graph& g) { g.nodes[1].operands[3].text = "0.5"; },
                "node 1: aten::addmm has beta = 1 in one and 0.5 in the other"},
        Changed{"LongConstant", [](Graph& g) { g.nodes[1].operands[3].text = std::string(200, '1'); },
                "node 1: aten::addmm has beta = 1 in one and " + std::string(80, '1') +
                    "... (200 characters) in the other"},
        Changed{"Operator", [](Graph& g) { g.nodes[1].name = "aten::mm"; },
                "node 1 is aten::addmm in one and aten::mm in the other"},
        Changed{"Missing", [](Graph& g) { g.nodes.erase(g.nodes.begin() + 6); },
                "node 6 is an action of the host in one and aten::_foreach_add_ in the other"},
        Changed{"Shorter", [](Graph& g) { g.nodes.pop_back(); },
                "one has 8 nodes and the other 7: the first that only one has is node 7, aten::_foreach_add_"},
        Changed{"Argument", [](Graph& g) { g.values[0].sizes[0] = 7; },
                "the argument %arg0 is f32[8, 16] in one and f32[7, 16] in the other"},
        Changed{"Arguments", [](Graph& g) { g.values[1].origin = GraphValue::Origin::constant; },
                "one has 2 arguments and the other 1"},
        Changed{"Strides",
                [](Graph& g) {
                  g.values[6].strides = {4, 1};
                },
                "node 0: aten::t makes f32[16, 4] with strides [1, 16] in one and [4, 1] in the other"},
        Changed{"Device", [](Graph& g) { g.values[4].device = "cuda:0"; },
                "node 1: aten::addmm has self = f32[4] on cpu in one and on cuda:0 in the other"},
        Changed{"Parameter", [](Graph& g) { g.values[4].name = "fc2.bias"; },
                "node 1: aten::addmm has self = @fc.bias: f32[4] in one and @fc2.bias: f32[4] in the other"},
        Changed{"OtherValue", [](Graph& g) { g.nodes[7].operands[1].values[1] = 5; },
                "node 7: aten::_foreach_add_ has other[1] = @fc.weight.grad: f32[4, 16] in one and @const0: f32[4, 16] "
                "in the "
                "other"},
        Changed{"ShorterList", [](Graph& g) { g.nodes[7].operands[1].values.pop_back(); },
                "node 7: aten::_foreach_add_ has other = 2 tensors in one and 1 tensor in the other"},
        Changed{"TensorForConstant", [](Graph& g) { g.nodes[2].operands[2].values = {4}; },
                "node 2: aten::nll_loss_forward has weight = none in one and @fc.bias: f32[4] in the other"},
        Changed{"OperandName", [](Graph& g) { g.nodes[0].operands[0].name = "input"; },
                "node 0: aten::t has the operand self in one and input in the other"},
        Changed{"Operands", [](Graph& g) { g.nodes[0].operands.clear(); },
                "node 0: aten::t has 1 operand in one and 0 in the other"},
        Changed{"ReduceOp", [](Graph& g) { g.nodes[3].operands[3].text = "avg"; },
                "node 3: all_reduce has op = sum in one and avg in the other"},
        Changed{"Group", [](Graph& g) { g.nodes[3].group = "tp"; },
                "node 3: all_reduce is on the group \"world\" in one and \"tp\" in the other"},
        Changed{"GroupSize", [](Graph& g) { g.nodes[3].group_size = 2; },
                "node 3: all_reduce has 4 ranks in one and 2 in the other"},
        Changed{"Bytes", [](Graph& g) { g.nodes[3].bytes = 128; },
                "node 3: all_reduce moves 256 bytes in one and 128 in the other"},
        Changed{"Async", [](Graph& g) { g.nodes[3].is_async = false; },
                "node 3: all_reduce is asynchronous in one and synchronous in the other"},
        Changed{"Kind", [](Graph& g) { g.nodes[3].kind = GraphNode::Kind::op; },
                "node 3: all_reduce is a collective in one and an operator in the other"},
        Changed{"Writes", [](Graph& g) { g.nodes[7].writes.pop_back(); },
                "node 7: aten::_foreach_add_ writes 2 tensors in one and 1 in the other"},
        Changed{"Outputs", [](Graph& g) { g.outputs.pop_back(); }, "one returns 2 tensors and the other 1"},
        Changed{"Output", [](Graph& g) { g.outputs[1] = 7; },
                "the returned tensor 1 is %9: f32[4] in one and %7: f32[8, 4] in the other"},
        Changed{"UnusedInput",
                [](Graph& g) { g.values.push_back(graph_value(GraphValue::Origin::constant, "unused", {})); }, ""}),
    [](const auto& test) { return test.param.name; });

TEST(GraphDifference, IsNotInTheNumbersOfValues) {
  RandomGraphs graphs(3);
  for (int i = 0; i < random_graphs; ++i) {
    const auto graph = graphs.graph();
    const auto other = renumbered(graph, graphs.random());
    ASSERT_EQ(first_difference(graph, other), "") << to_string(graph) << to_string(other);
  }
}

TEST(GraphDifference, IsInWhichOfTwoLikeResultsIsUsed) {
  auto graph = linear_step();
  graph.values.push_back(graph.values[7]);
  graph.nodes[1].results = {7, 10};
  auto other = graph;
  other.nodes[2].operands[0].values = {10};
  EXPECT_EQ(first_difference(graph, other),
            "node 2: aten::nll_loss_forward has self = %7: f32[8, 4] in one and %10: f32[8, 4] in the other");
}

TEST(GraphDifference, IsFoundWhicheverFieldOfANodeChanges) {
  const std::vector<std::function<void(GraphNode&)>> changes{
      [](GraphNode& node) { node.name += '?'; },
      [](GraphNode& node) { node.group += '?'; },
      [](GraphNode& node) { ++node.group_size; },
      [](GraphNode& node) { ++node.bytes; },
      [](GraphNode& node) { node.is_async = !node.is_async; },
      [](GraphNode& node) { node.operands.push_back({.name = "more"}); },
      [](GraphNode& node) {
        if (node.operands.empty()) node.operands.emplace_back();
        node.operands.back().text += std::string(300, '?');
      },
      [](GraphNode& node) {
        if (node.operands.empty()) node.operands.emplace_back();
        node.operands.front().is_list = !node.operands.front().is_list;
      },
  };
  RandomGraphs graphs(4);
  for (int i = 0; i < random_graphs; ++i) {
    const auto graph = graphs.graph();
    if (graph.nodes.empty()) continue;
    auto other = graph;
    const auto node = graphs.below(graph.nodes.size());
    const auto change = graphs.below(changes.size());
    changes[change](other.nodes[node]);
    EXPECT_THAT(first_difference(graph, other), HasSubstr("node " + std::to_string(node))) << "change " << change;
    EXPECT_THAT(first_difference(other, graph), Not(IsEmpty()));
  }
}

TEST(GraphPicture, ShowsCollectivesInTheColourOfTheirGroup) {
  auto graph = linear_step();
  graph.nodes.erase(graph.nodes.begin(), graph.nodes.begin() + 3);
  graph.nodes[1].group = "tp \"0\"";
  EXPECT_EQ(to_dot(graph), R"(digraph step {
  rankdir=TB;
  node [fontname="Helvetica", fontsize=10, shape=box, style=filled, fillcolor="#f7f7f7"];
  edge [fontname="Helvetica", fontsize=8, color="#606060"];
  node0 [label="0  all_reduce\ndtype = f32\nop = sum\non world\n4 ranks, 256 B\nwrites @fc.weight.grad", shape=box, style="filled,rounded,dashed", penwidth=2, fillcolor="#f4a582"];
  node1 [label="1  cohort::all_gather_into_tensor\n%8\ngroup = \"world\"\non tp \"0\"\n4 ranks, 16 B", shape=box, style="filled,rounded", penwidth=2, fillcolor="#92c5de"];
  node0 -> node1 [style=dotted];
  node2 [label="2  wait\nwrites @fc.weight.grad", shape=hexagon, fillcolor="#ffffbf"];
  node0 -> node2 [label="f32[4, 16]"];
  node1 -> node2 [style=dotted];
  node3 [label="3  host", shape=note, fillcolor="#d9d9d9"];
  node2 -> node3 [style=dotted];
  node4 [label="4  _foreach_add_\nalpha = host\nwrites @fc.weight\nwrites @const0"];
  node2 -> node4 [label="f32[4, 16]"];
  output0 [label="returned 0", shape=oval, fillcolor="#ffffff"];
  output1 [label="returned 1", shape=oval, fillcolor="#ffffff"];
  node1 -> output1;
}
)");
}

/// A forward and a backward operator, an asynchronous all_reduce of the gradient, and an optimizer of two operators.
Graph step_with_phases() {
  auto graph = linear_step();
  graph.groups = {{.id = "world", .label = "mesh_dp", .ranks = {0, 1, 2, 3}}};
  graph.nodes[2].name = "aten::nll_loss_backward";
  graph.nodes.push_back(graph.nodes.back());
  return graph;
}

TEST(GraphPicture, FramesThePhasesOfAStep) {
  const auto text = to_dot(step_with_phases());
  EXPECT_THAT(text, HasSubstr("subgraph cluster_forward { label=\"forward\"; labeljust=l; fontname=\"Helvetica\"; "
                              "fontsize=14; color=\"#b0b0b0\"; node0; node1; }"));
  EXPECT_THAT(text, HasSubstr("subgraph cluster_backward"));
  EXPECT_THAT(text, HasSubstr("node2; node3; node4; node5; }"));
  EXPECT_THAT(text, HasSubstr("node6; node7; node8; }"));
  EXPECT_THAT(text, HasSubstr("on mesh_dp\\n4 ranks, 256 B"));
  EXPECT_THAT(to_dot(linear_step()), Not(HasSubstr("subgraph")));
}

TEST(GraphPicture, FoldsOperatorsBetweenCollectives) {
  const auto graph = step_with_phases();
  EXPECT_EQ(to_dot(graph, {.fold_above = 9}), to_dot(graph));
  const auto text = to_dot(graph, {.fold_above = 8});
  EXPECT_THAT(text, HasSubstr("box0 [label=\"0 to 1  2 operators\\naddmm\\nt\"]"));
  EXPECT_THAT(text, HasSubstr("box2 [label=\"3  all_reduce\\non mesh_dp\\n4 ranks, 256 B\""));
  EXPECT_THAT(text, HasSubstr("box5 [label=\"6 to 8  3 operators\\n2 x _foreach_add_\\nhost\"]"));
  EXPECT_THAT(text, HasSubstr("box0 -> box1 [label=\"128 B\"]"));
  EXPECT_THAT(text, HasSubstr("value0 [label=\"argument 0\\nf32[8, 16]\""));
  EXPECT_THAT(text, HasSubstr("box5; }"));
}

/// Each line is one statement, whose quotes are closed, and edges join what was declared.
TEST(GraphPicture, OfAnyGraphIsWellFormed) {
  RandomGraphs graphs(5);
  for (int i = 0; i < random_graphs; ++i) {
    const auto graph = graphs.graph();
    const auto text = i % 2 == 0 ? to_dot(graph) : to_dot(graph, {.fold_above = 0});
    std::istringstream lines(text);
    std::string line;
    std::set<std::string> declared;
    while (std::getline(lines, line)) {
      bool is_quoted = false;
      for (std::size_t at = 0; at < line.size(); ++at) {
        if (line[at] == '\\' && is_quoted) {
          ++at;
        } else if (line[at] == '"') {
          is_quoted = !is_quoted;
        }
      }
      EXPECT_FALSE(is_quoted) << line;
      std::istringstream words(line);
      std::string first;
      std::string second;
      std::string third;
      words >> first >> second >> third;
      if (second == "->") {
        if (third.ends_with(';')) third.pop_back();
        EXPECT_TRUE(declared.contains(first) && declared.contains(third)) << line;
      } else {
        declared.insert(first);
      }
    }
    EXPECT_TRUE(text.ends_with("}\n"));
  }
}

TEST(PrintedGraph, ShowsTheTensorsOfACollectiveOnce) {
  Graph graph;
  graph.values = {graph_value(GraphValue::Origin::argument, "", {2}),
                  graph_value(GraphValue::Origin::argument, "", {4})};
  const auto line = [&](const std::string& name, std::vector<GraphOperand> operands) {
    graph.nodes = {{.kind = GraphNode::Kind::collective,
                    .name = name,
                    .operands = std::move(operands),
                    .group = "dp",
                    .group_size = 1,
                    .bytes = 1536}};
    const auto text = to_string(graph);
    const auto begin = text.find(name, text.find("nodes:"));
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(line("broadcast", {{"out", {0}, true}, {"dtype", {}, false, "f32"}, {"root", {}, false, "2"}}),
            "broadcast(%arg0: f32[2], root=2) on \"dp\" (1 rank, 1.5 KiB)");
  EXPECT_EQ(line("all_gather_single", {{"in", {0}, true}, {"out", {1}, true}, {"dtype", {}, false, "bf16"}}),
            "all_gather_single(%arg0: f32[2], out=%arg1: f32[4], dtype=bf16) on \"dp\" (1 rank, 1.5 KiB)");
  EXPECT_EQ(line("all_reduce", {{"in", {0, 1}, true}, {"out", {0, 1}, true}, {"op", {}, false, "max"}}),
            "all_reduce([%arg0: f32[2], %arg1: f32[4]], max) on \"dp\" (1 rank, 1.5 KiB)");
  EXPECT_EQ(line("barrier", {{"dtype", {}, false, "f32"}}), "barrier(dtype=f32) on \"dp\" (1 rank, 1.5 KiB)");
}

TEST(GraphValues, CountTheirBytes) {
  EXPECT_EQ(bytes_of(graph_value(GraphValue::Origin::argument, "", {2, 3}, "i64")), 48U);
  EXPECT_EQ(bytes_of(graph_value(GraphValue::Origin::argument, "", {})), 4U);
  EXPECT_EQ(bytes_of(graph_value(GraphValue::Origin::argument, "", {2, 0})), 0U);
}

TEST(CollectiveSummary, CountsByGroupAndOperation) {
  auto graph = linear_step();
  auto other = graph.nodes[3];
  other.group = "tp";
  other.group_size = 2;
  graph.nodes.push_back(other);
  other = graph.nodes[3];
  other.name = "cohort::all_reduce_";
  other.is_async = false;
  graph.nodes.push_back(other);
  EXPECT_THAT(summarize(graph), ElementsAre(CollectiveSummary{"world", 4, "all_reduce", 2, 1, 512},
                                            CollectiveSummary{"world", 4, "all_gather_single", 1, 0, 16},
                                            CollectiveSummary{"tp", 2, "all_reduce", 1, 1, 256}));
  EXPECT_THAT(summarize(Graph()), IsEmpty());
}

TEST(CollectivesOf, ListsWhatMustBeEqualOnAllRanks) {
  auto graph = linear_step();
  const auto add = [&](const std::string& name, std::vector<GraphOperand> operands, std::size_t bytes) {
    graph.nodes.push_back({.kind = GraphNode::Kind::collective,
                           .name = name,
                           .operands = std::move(operands),
                           .group = "world",
                           .group_size = 4,
                           .bytes = bytes});
  };
  add("broadcast", {{"tensor", {1}}, {"root", {}, false, "2"}}, 64);
  add("cohort::reduce_scatter_tensor", {{"input", {0}}, {"reduce_op", {}, false, "\"avg\""}}, 512);
  add("all_to_all_single", {{"output", {0}}, {"input", {0}}, {"input_splits", {}, false, "[1, 7]"}}, 512);
  add("gather", {{"input", {0}}, {"root", {}, false, "0"}}, 2048);
  add("send", {{"tensor", {0}}, {"peer", {}, false, "1"}}, 512);
  add("barrier", {}, 0);
  add("all_reduce", {{"in", {1}, true}, {"dtype", {}, false, "bf16"}, {"op", {}, false, "max"}}, 64);
  EXPECT_THAT(collectives_of(graph, "world"),
              ElementsAre("all_reduce f32 sum, 256 bytes", "all_gather_single f32, 16 bytes",
                          "broadcast i64, root 2, 64 bytes", "reduce_scatter_single f32 avg, 512 bytes",
                          "all_to_all_single f32", "gather f32, root 0", "barrier", "all_reduce bf16 max, 64 bytes"));
  EXPECT_THAT(collectives_of(graph, "tp"), IsEmpty());
}

}  // namespace
}  // namespace cohort::test
