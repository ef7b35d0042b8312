// SPDX-License-Identifier: BSD-3-Clause
#include "graph/dot_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "graph/names.h"

namespace cohort::graph_dot {

namespace {

/// Light, so that black text can be read on them, and different for the colour-blind.
constexpr std::array group_colours{"#f4a582", "#92c5de", "#b8e186", "#d8b8e8", "#fee08b", "#8dd3c7"};

bool writes_a_constant(const Graph& graph, const GraphNode& node, bool with_name) {
  return std::any_of(node.writes.begin(), node.writes.end(), [&](std::size_t value) {
    const auto& written = graph.values[value];
    return written.origin == GraphValue::Origin::constant && (!with_name || !written.name.empty());
  });
}

}  // namespace

std::string label(const std::vector<std::string>& lines) {
  // Graphviz understands a backslash and a quote, and "\n" as a new line.
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

std::string_view head() {
  return "digraph step {\n  rankdir=TB;\n  node [fontname=\"Helvetica\", fontsize=10, shape=box, style=filled, "
         "fillcolor=\"#f7f7f7\"];\n  edge [fontname=\"Helvetica\", fontsize=8, color=\"#606060\"];\n";
}

std::string short_name(const GraphNode& node) {
  std::string_view name = node.name;
  if (name.empty()) name = "host";
  if (name.starts_with("aten::")) name.remove_prefix(6);
  return graph_names::shortened(name, longest_label);
}

std::vector<std::string> lines_of_collective(const Graph& graph, const GraphNode& node) {
  return {fmt::format("on {}", graph_names::shortened(graph_names::name_of_group(graph, node.group), longest_label)),
          fmt::format("{} ranks, {}", node.group_size, graph_names::bytes_text(node.bytes))};
}

bool is_issued_in_order(const GraphNode& node) {
  return node.kind == GraphNode::Kind::collective || node.kind == GraphNode::Kind::wait;
}

bool is_waited_for(const GraphNode& node) {
  return is_issued_in_order(node) && !node.is_async;
}

std::string_view Styles::colour_of(const std::string& group) {
  auto found = std::find(groups_.begin(), groups_.end(), group);
  if (found == groups_.end()) found = groups_.insert(groups_.end(), group);
  return group_colours.at(static_cast<std::size_t>(found - groups_.begin()) % group_colours.size());
}

std::string Styles::of(const GraphNode& node) {
  switch (node.kind) {
    case GraphNode::Kind::collective:
      return fmt::format(", shape=box, style=\"filled,rounded{}\", penwidth=2, fillcolor=\"{}\"",
                         node.is_async ? ",dashed" : "", colour_of(node.group));
    case GraphNode::Kind::wait:
      return ", shape=hexagon, fillcolor=\"#ffffbf\"";
    case GraphNode::Kind::host:
      return ", shape=note, fillcolor=\"#d9d9d9\"";
    case GraphNode::Kind::distributed:
      return of_body(node);
    case GraphNode::Kind::op:
      break;
  }
  return {};
}

/// As its first collective, if it communicates.
std::string Styles::of_body(const GraphNode& node) {
  const auto found = std::find_if(node.body.begin(), node.body.end(),
                                  [](const GraphNode& each) { return each.kind == GraphNode::Kind::collective; });
  return fmt::format(", style=\"filled,rounded\", fillcolor=\"{}\"",
                     found == node.body.end() ? "#ffffff" : colour_of(found->group));
}

Phases phases_of(const Graph& graph) {
  const auto& nodes = graph.nodes;
  Phases phases{.backward = nodes.size(), .optimizer = nodes.size()};
  std::size_t root = nodes.size();  // the gradient of the loss by itself
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (phases.backward == nodes.size()) {
      if (nodes[i].name == "aten::ones_like") root = i;
      if (nodes[i].name.find("_backward") != std::string::npos) phases.backward = std::min(i, root);
    } else if (writes_a_constant(graph, nodes[i], true)) {
      phases.optimizer = i;
      break;
    }
  }
  // What it writes before that, such as a momentum, belongs to it.
  while (phases.optimizer < nodes.size() && phases.optimizer > phases.backward + 1) {
    const auto& before = nodes[phases.optimizer - 1];
    const bool is_part = before.kind == GraphNode::Kind::host ||
                         (before.kind == GraphNode::Kind::op && writes_a_constant(graph, before, false));
    if (!is_part) break;
    --phases.optimizer;
  }
  return phases;
}

std::string frames(const Phases& phases, const std::vector<std::string>& names, const std::vector<std::size_t>& nodes) {
  std::string text;
  if (names.empty() || phases.of(nodes.front()) == phases.of(nodes.back())) return text;
  for (const std::string_view phase : {"forward", "backward", "optimizer"}) {
    std::string inside;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (phases.of(nodes[i]) == phase) inside += fmt::format(" {};", names[i]);
    }
    if (inside.empty()) continue;
    fmt::format_to(std::back_inserter(text),
                   "  subgraph cluster_{} {{ label=\"{}\"; labeljust=l; fontname=\"Helvetica\"; fontsize=14; "
                   "color=\"#b0b0b0\";{} }}\n",
                   phase, phase, inside);
  }
  return text;
}

}  // namespace cohort::graph_dot
