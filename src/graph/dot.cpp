// SPDX-License-Identifier: BSD-3-Clause
//
// The picture of a graph: time goes down. An edge leads from the node that last made or wrote a value to each that uses
// it, so what a collective waits for, and what can go on beside it, is seen. Of the inputs only arguments are drawn.
#include <cohort/torch/graph.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/dot_style.h"
#include "graph/names.h"

namespace cohort {

namespace {

using graph_dot::label;
using graph_dot::longest_label;

constexpr std::size_t most_constants = 4;
constexpr std::size_t most_inputs = 4;

class GraphPicture {
 public:
  explicit GraphPicture(const Graph& graph)
      : graph_(graph), names_(graph_names::value_names(graph)), maker_(graph.values.size()) {}

  std::string draw() {
    text_ = graph_dot::head();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_node(i);
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      add("  output{} [label=\"returned {}\", shape=oval, fillcolor=\"#ffffff\"];\n", i, i);
      if (const auto& from = maker_of(graph_.outputs[i]); !from.empty()) add("  {} -> output{};\n", from, i);
    }
    std::vector<std::string> boxes;
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      boxes.push_back(fmt::format("node{}", i));
      numbers.push_back(i);
    }
    text_ += graph_dot::frames(graph_dot::phases_of(graph_), boxes, numbers);
    return std::move(text_) + "}\n";
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  /// The picture's name for what made the value last; draws the value itself if it is an argument. Empty for other
  /// inputs: they are named where they are used, as lines from each parameter to all its uses would hide everything
  /// else.
  const std::string& maker_of(std::size_t value) {
    auto& maker = maker_[value];
    if (maker.empty() && graph_.values[value].origin == GraphValue::Origin::argument) {
      maker = fmt::format("value{}", value);
      add("  {} [label=\"{}\", shape=oval, fillcolor=\"#ffffff\", penwidth=2];\n", maker,
          label({graph_names::shortened(names_[value], longest_label), to_string(graph_.values[value])}));
    }
    return maker;
  }

  std::vector<std::string> lines_of(std::size_t index) const {
    const auto& node = graph_.nodes[index];
    std::vector<std::string> lines{fmt::format("{}  {}", index, graph_dot::short_name(node))};
    std::size_t constants = 0;
    for (const auto& operand : node.operands) {
      for (const auto value : operand.values) {
        const bool is_written = std::find(node.writes.begin(), node.writes.end(), value) != node.writes.end();
        const bool is_named =
            maker_[value].empty() && !is_written && graph_.values[value].origin != GraphValue::Origin::argument;
        if (is_named && lines.size() <= most_inputs)
          add_once(lines, graph_names::shortened(names_[value], longest_label));
      }
      if (!operand.values.empty() || operand.text.empty() || operand.text == "None") continue;
      if (graph_names::repeats_group(node, operand)) continue;
      if (++constants > most_constants) continue;
      lines.push_back(fmt::format("{} = {}", graph_names::shortened(operand.name, longest_label),
                                  graph_names::shortened(operand.text, longest_label)));
    }
    if (constants > most_constants) lines.push_back(fmt::format("and {} more", constants - most_constants));
    if (node.kind == GraphNode::Kind::collective) {
      for (auto& each : graph_dot::lines_of_collective(graph_, node)) lines.push_back(std::move(each));
    }
    for (const auto value : node.writes) {
      if (lines.size() > most_constants + 4) break;
      add_once(lines, "writes " + graph_names::shortened(names_[value], longest_label));
    }
    return lines;
  }

  static void add_once(std::vector<std::string>& lines, std::string line) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
  }

  void add_node(std::size_t index) {
    const auto& node = graph_.nodes[index];
    add("  node{} [label=\"{}\"{}];\n", index, label(lines_of(index)), styles_.of(node));
    std::set<std::pair<std::string, std::string>> edges;  // one for each tensor, however often the node uses it
    const auto use = [&](std::size_t value) {
      if (const auto& maker = maker_of(value); !maker.empty()) edges.emplace(maker, to_string(graph_.values[value]));
    };
    for (const auto& operand : node.operands) {
      for (const auto value : operand.values) use(value);
    }
    for (const auto value : node.writes) use(value);
    for (const auto& [from, type] : edges) {
      // The label of an input says its type already.
      if (from.starts_with("value")) {
        add("  {} -> node{};\n", from, index);
      } else {
        add("  {} -> node{} [label=\"{}\"];\n", from, index, label({type}));
      }
    }
    const auto name = fmt::format("node{}", index);
    add_order(index, edges);
    for (const auto& each : node.body) {
      for (const auto value : each.results) maker_[value] = name;
      for (const auto value : each.writes) maker_[value] = name;
    }
    for (const auto value : node.results) maker_[value] = name;
    for (const auto value : node.writes) maker_[value] = name;
  }

  /// A collective works on memory that others may write under another name, such as a bucket of gradients: then a
  /// dotted line says when it is issued or awaited.
  void add_order(std::size_t index, const std::set<std::pair<std::string, std::string>>& edges) {
    if (index == 0) return;
    const auto before = fmt::format("node{}", index - 1);
    const bool is_joined =
        std::any_of(edges.begin(), edges.end(), [&](const auto& edge) { return edge.first == before; });
    if (is_joined ||
        !(graph_dot::is_issued_in_order(graph_.nodes[index]) || graph_dot::is_waited_for(graph_.nodes[index - 1]))) {
      return;
    }
    add("  {} -> node{} [style=dotted];\n", before, index);
  }

  const Graph& graph_;
  std::vector<std::string> names_;
  std::vector<std::string> maker_;
  graph_dot::Styles styles_;
  std::string text_;
};

}  // namespace

std::string to_dot(const Graph& graph, const GraphPictureOptions& options) {
  return graph.nodes.size() > options.fold_above ? graph_dot::draw_folded(graph) : GraphPicture(graph).draw();
}

}  // namespace cohort
