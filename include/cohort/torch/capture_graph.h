// SPDX-License-Identifier: BSD-3-Clause
//
// The graph of a captured step (capture.h), to be read: one node for each operator, collective and action of the host, in
// the order in which they are replayed.
//
//   std::cout << step.graph();
//   for (const auto& node : step.graph().nodes) {
//     if (node.kind == cohort::GraphNode::Kind::collective) bytes += node.bytes;
//   }
//
// Groups, meshes and placements are no values of the graph: a collective names its group by the id.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
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
  std::string name;  ///< of a watched parameter; otherwise empty
  std::vector<std::int64_t> sizes{};
  std::vector<std::int64_t> strides{};
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  friend bool operator==(const GraphValue&, const GraphValue&) = default;
};

/// An argument of a node.
struct GraphOperand {
  std::string name;                   ///< in the operator's schema
  std::vector<std::size_t> values{};  ///< the values, if it is a tensor or a list of tensors
  bool is_list = false;
  std::string text{};  ///< otherwise: the constant; "host" for a number that the host gives to each replay
  friend bool operator==(const GraphOperand&, const GraphOperand&) = default;
};

struct GraphNode {
  enum class Kind : std::uint8_t { op, collective, wait, host };
  Kind kind = Kind::op;
  std::string name;  ///< "aten::addmm", "cohort::all_reduce", "all_reduce" for a collective on a group
  std::vector<GraphOperand> operands{};
  std::vector<std::size_t> results{};  ///< values that it makes
  std::vector<std::size_t> writes{};   ///< values that it writes in place
  std::string group{};                 ///< the id of a collective's group
  int group_size = 0;
  std::size_t bytes = 0;  ///< of a collective: of input and output the larger
  bool is_async = false;  ///< a collective that the step waits for later
  friend bool operator==(const GraphNode&, const GraphNode&) = default;
};

struct COHORT_API Graph {
  std::vector<GraphValue> values{};
  std::vector<GraphNode> nodes{};
  std::vector<std::size_t> outputs{};  ///< what the step returns

  friend bool operator==(const Graph&, const Graph&) = default;
};

/// One line for each node: results with dtype and sizes, operator, operands, group.
COHORT_API std::ostream& operator<<(std::ostream& out, const Graph& graph);
COHORT_API std::string to_string(const Graph& graph);

/// Where two graphs differ first, in words; empty if they are equal.
COHORT_API std::string first_difference(const Graph& a, const Graph& b);

/// As text that read_graph() reads again: for comparing ranks and for tools. read_graph() throws a ValueError that names
/// the line if the text is no graph.
COHORT_API std::string serialize(const Graph& graph);
COHORT_API Graph read_graph(const std::string& text);

/// A picture of the graph in the language of Graphviz: dot -Tsvg makes it one.
COHORT_API std::string to_dot(const Graph& graph);

}  // namespace cohort
