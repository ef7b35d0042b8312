// SPDX-License-Identifier: BSD-3-Clause
//
// The picture of a graph: time goes down. An edge leads from the node that last made or wrote a value to each that uses
// it, so what a collective waits for, and what can go on beside it, is seen. Only inputs that are used are drawn.
#include <cohort/graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/names.h"

namespace cohort {

namespace {

/// Light, so that black text can be read on them, and different for the colour-blind.
constexpr std::array group_colours{"#f4a582", "#92c5de", "#b8e186", "#d8b8e8", "#fee08b", "#8dd3c7"};
constexpr std::size_t longest_label = 32;
constexpr std::size_t most_constants = 4;

/// Within a label in double quotes: Graphviz understands a backslash and a quote, and "\n" as a new line.
std::string label(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    if (!text.empty()) text += "\\n";
    for (const char c : line) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
  }
  return text;
}

class GraphPicture {
 public:
  explicit GraphPicture(const Graph& graph)
      : graph_(graph), names_(graph_names::value_names(graph)), maker_(graph.values.size()) {}

  std::string draw() {
    add("digraph step {{\n  rankdir=TB;\n  node [fontname=\"Helvetica\", fontsize=10, shape=box, style=filled, "
        "fillcolor=\"#f7f7f7\"];\n  edge [fontname=\"Helvetica\", fontsize=8, color=\"#606060\"];\n");
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_node(i);
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      const auto from = maker_of(graph_.outputs[i]);
      add("  output{} [label=\"returned {}\", shape=oval, fillcolor=\"#ffffff\"];\n  {} -> output{};\n", i, i, from, i);
    }
    add("}}\n");
    return std::move(text_);
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  /// The picture's name for what made the value last; draws the value itself if it is an input.
  const std::string& maker_of(std::size_t value) {
    auto& maker = maker_[value];
    if (maker.empty()) {
      maker = fmt::format("value{}", value);
      add("  {} [label=\"{}\", shape=oval, fillcolor=\"#ffffff\"{}];\n", maker,
          label({graph_names::shortened(names_[value], longest_label), to_string(graph_.values[value])}),
          graph_.values[value].origin == GraphValue::Origin::argument ? ", penwidth=2" : "");
    }
    return maker;
  }

  std::string_view colour_of(const std::string& group) {
    auto found = std::find(groups_.begin(), groups_.end(), group);
    if (found == groups_.end()) found = groups_.insert(groups_.end(), group);
    return group_colours.at(static_cast<std::size_t>(found - groups_.begin()) % group_colours.size());
  }

  std::string style_of(const GraphNode& node) {
    switch (node.kind) {
      case GraphNode::Kind::collective:
        return fmt::format(", shape=box, style=\"filled,rounded{}\", penwidth=2, fillcolor=\"{}\"",
                           node.is_async ? ",dashed" : "", colour_of(node.group));
      case GraphNode::Kind::wait:
        return ", shape=hexagon, fillcolor=\"#ffffbf\"";
      case GraphNode::Kind::host:
        return ", shape=note, fillcolor=\"#d9d9d9\"";
      case GraphNode::Kind::distributed:
        return style_of_body(node);
      case GraphNode::Kind::op:
        break;
    }
    return {};
  }

  /// As its first collective, if it communicates.
  std::string style_of_body(const GraphNode& node) {
    const auto found = std::find_if(node.body.begin(), node.body.end(),
                                    [](const GraphNode& each) { return each.kind == GraphNode::Kind::collective; });
    return fmt::format(", style=\"filled,rounded\", fillcolor=\"{}\"",
                       found == node.body.end() ? "#ffffff" : colour_of(found->group));
  }

  std::vector<std::string> lines_of(std::size_t index) const {
    const auto& node = graph_.nodes[index];
    std::string_view name = node.name;
    if (name.empty()) name = "host";
    if (name.starts_with("aten::")) name.remove_prefix(6);
    std::vector<std::string> lines{fmt::format("{}  {}", index, graph_names::shortened(name, longest_label))};
    std::size_t constants = 0;
    for (const auto& operand : node.operands) {
      if (!operand.values.empty() || operand.text.empty() || graph_names::repeats_group(node, operand)) continue;
      if (++constants > most_constants) continue;
      lines.push_back(fmt::format("{} = {}", graph_names::shortened(operand.name, longest_label),
                                  graph_names::shortened(operand.text, longest_label)));
    }
    if (constants > most_constants) lines.push_back(fmt::format("and {} more", constants - most_constants));
    if (node.kind == GraphNode::Kind::collective) {
      lines.push_back(fmt::format("on {}", graph_names::shortened(node.group, longest_label)));
      lines.push_back(fmt::format("{} ranks, {}", node.group_size, graph_names::bytes_text(node.bytes)));
    }
    for (const auto value : node.writes) {
      if (lines.size() > most_constants + 4) break;
      lines.push_back("writes " + graph_names::shortened(names_[value], longest_label));
    }
    return lines;
  }

  void add_node(std::size_t index) {
    const auto& node = graph_.nodes[index];
    add("  node{} [label=\"{}\"{}];\n", index, label(lines_of(index)), style_of(node));
    std::set<std::pair<std::string, std::string>> edges;  // one for each tensor, however often the node uses it
    const auto use = [&](std::size_t value) { edges.emplace(maker_of(value), to_string(graph_.values[value])); };
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
    for (const auto& each : node.body) {
      for (const auto value : each.results) maker_[value] = name;
      for (const auto value : each.writes) maker_[value] = name;
    }
    for (const auto value : node.results) maker_[value] = name;
    for (const auto value : node.writes) maker_[value] = name;
  }

  const Graph& graph_;
  std::vector<std::string> names_;
  std::vector<std::string> maker_;
  std::vector<std::string> groups_;
  std::string text_;
};

}  // namespace

std::string to_dot(const Graph& graph) {
  return GraphPicture(graph).draw();
}

}  // namespace cohort
