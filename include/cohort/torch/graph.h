// SPDX-License-Identifier: BSD-3-Clause
//
// The graph of a captured step (capture.h), to be read: one node for each operator, collective and action of the host,
// in the order in which they are replayed.
//
//   auto captured = cohort::capture([](torch::Tensor x) { return x * 2; });
//   captured(x);
//   const cohort::Graph& graph = captured.graph();
//   std::cout << graph;
//   for (const auto& each : cohort::summarize(graph)) {
//     std::cout << each.group << ": " << each.count << " " << each.operation << ", " << each.bytes << " bytes\n";
//   }
//   std::ofstream("step.dot") << cohort::to_dot(graph);             // dot -Tsvg step.dot -o step.svg
//
// What it prints:
//
// ```text
//   graph on cpu: 5 nodes, 1 collective (1.0 KiB), 1 wait, 1 host action
//     on "world" (4 ranks): 1 all_reduce (1.0 KiB)
//   inputs:
//     %arg0          : f32[8, 16]
//     @fc.weight     : f32[16, 16]
//     @fc.weight.grad: f32[16, 16]
//   nodes:
//     0  %3: f32[8, 16]   = aten::mm(%arg0: f32[8, 16], @fc.weight: f32[16, 16])
//     1  @fc.weight.grad! = all_reduce(@fc.weight.grad: f32[16, 16], sum) on "world" (4 ranks, 1.0 KiB), async
//     2  @fc.weight.grad! = wait(@fc.weight.grad: f32[16, 16])
//     3                     host
//     4  @fc.weight!      = aten::add_(@fc.weight: f32[16, 16], @fc.weight.grad: f32[16, 16], alpha=host)
//   returns %3
// ```
//
// Numbers in front are those of the nodes, %3 is the value 3, %arg0 the first argument, @name what existed before the
// call. What stands before the equals sign is made, or with an exclamation mark written in place. Strides are shown
// where a tensor is not row-major. Lines with a bar belong to the body of the node above.
//
// Groups, meshes and placements are no values of the graph: a collective names its group by the id.
//
// This header needs no libtorch, so that tools can read graphs without it.
#pragma once

#include <cohort/export.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

struct GraphValue {
  enum class Origin : std::uint8_t {
    argument,  ///< of the call
    gradient,  ///< what a watched parameter had as gradient when the call began
    constant,  ///< a tensor that existed before: parameters, buffers, the optimizer's state
    result,    ///< of a node
  };
  Origin origin = Origin::result;
  std::string name{};  ///< of a watched parameter or its gradient; otherwise empty
  std::vector<std::int64_t> sizes{};
  std::vector<std::int64_t> strides{};
  std::string dtype = "f32";      ///< as in dtype.h; else libtorch's name, in lower case
  std::size_t element_bytes = 4;  ///< of the dtype
  std::string device = "cpu";     ///< "cpu", "cuda:0", ...
  friend bool operator==(const GraphValue&, const GraphValue&) = default;
};

/// An argument of a node.
struct GraphOperand {
  std::string name{};                 ///< in the operator's schema
  std::vector<std::size_t> values{};  ///< the values, if it is a tensor or a list of tensors
  bool is_list = false;
  std::string text{};  ///< otherwise: the constant; "host" for a number that the host gives to each replay
  friend bool operator==(const GraphOperand&, const GraphOperand&) = default;
};

/// A collective on a group has operands "in" and "out" (lists), "dtype", "op" (the reduction) and "root", as far as it
/// uses them; a functional one those of its schema. from_local, to_local and redistribute of distributed tensors are
/// one node each, whose body says what they consist of.
struct GraphNode {
  enum class Kind : std::uint8_t { op, collective, wait, host, distributed };
  Kind kind = Kind::op;
  std::string name{};  ///< "aten::addmm", "cohort::all_reduce", "all_reduce" for a collective on a group
  std::vector<GraphOperand> operands{};
  std::vector<std::size_t> results{};  ///< values that it makes
  std::vector<std::size_t> writes{};   ///< values that it writes in place
  std::string group{};                 ///< the id of a collective's group
  int group_size = 0;
  std::size_t bytes = 0;          ///< of a collective: of input and output the larger
  bool is_async = false;          ///< a collective that the step waits for later
  std::string source{};           ///< "train.cpp:41": the line that called it, if that was recorded
  std::vector<GraphNode> body{};  ///< of a distributed node; these have no bodies themselves
  friend bool operator==(const GraphNode&, const GraphNode&) = default;
};

/// A group that collectives of the step run on.
struct GraphGroup {
  std::string id{};
  std::string label{};       ///< its description ("mesh_tp" for a dimension of a mesh), else its name; may be empty
  std::vector<int> ranks{};  ///< its members, as ranks of the job
  friend bool operator==(const GraphGroup&, const GraphGroup&) = default;
};

struct COHORT_API Graph {
  std::vector<GraphGroup> groups{};
  std::vector<GraphValue> values{};
  std::vector<GraphNode> nodes{};
  std::vector<std::size_t> outputs{};  ///< what the step returns

  friend bool operator==(const Graph&, const Graph&) = default;
};

/// All nodes in the order of replay: a node with a body, and then those of the body.
COHORT_API std::vector<const GraphNode*> all_nodes(const Graph& graph);

/// Of the elements, without gaps between them.
COHORT_API std::size_t bytes_of(const GraphValue& value);

/// "f32[8, 16]"
COHORT_API std::string to_string(const GraphValue& value);

/// One line for each node: results with dtype and sizes, operator, operands, group. Long constants and lists are cut.
COHORT_API std::ostream& operator<<(std::ostream& out, const Graph& graph);
COHORT_API std::string to_string(const Graph& graph);

/// Where two graphs differ first, in words ("node 12: aten::mul has other = 0.1 in one and 0.09 in the other"). Empty
/// if they compute the same, however their values are numbered and whatever inputs no node uses; only the arguments
/// must agree even then.
COHORT_API std::string first_difference(const Graph& a, const Graph& b);

/// As text that read_graph() reads again: for comparing ranks and for tools. read_graph() throws a ValueError that
/// names the line if the text is no graph. The text may come from anywhere: what is read refers to values that exist,
/// has sizes whose product is a number, and takes memory in proportion to the text.
COHORT_API std::string serialize(const Graph& graph);
COHORT_API Graph read_graph(std::string_view text);

struct GraphPictureOptions {
  /// A graph with more nodes is drawn with each run of operators between collectives as one box.
  std::size_t fold_above = std::numeric_limits<std::size_t>::max();
};

/// A picture of the graph in the language of Graphviz: dot -Tsvg makes it one. Each group has a colour, and the
/// forward, backward and optimizer parts have frames where operators tell them apart.
COHORT_API std::string to_dot(const Graph& graph, const GraphPictureOptions& options = {});

/// The collectives of one kind on one group.
struct CollectiveSummary {
  std::string group;
  int group_size = 0;
  std::string operation;  ///< as groups name it (op_type.h), whether called on the group or as a functional collective
  std::size_t count = 0;
  std::size_t async_count = 0;
  std::size_t bytes = 0;  ///< the sum of GraphNode::bytes
  friend bool operator==(const CollectiveSummary&, const CollectiveSummary&) = default;
};
/// Groups and operations in the order in which they first appear, the operations of a group together.
COHORT_API std::vector<CollectiveSummary> summarize(const Graph& graph);

/// The collectives on a group, in order, each as a line of all that must be equal on the group's ranks ("all_reduce f32
/// sum, 1024 bytes"). Bytes are left out where ranks may differ (all_to_all, gather, scatter), and so are sends and
/// receives.
COHORT_API std::vector<std::string> collectives_of(const Graph& graph, std::string_view group);

}  // namespace cohort
