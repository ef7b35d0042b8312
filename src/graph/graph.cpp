// SPDX-License-Identifier: BSD-3-Clause
//
// The printed form of a graph. Each line can be understood alone, so that a search in a graph of thousands of nodes
// shows what is needed: operands have their types, and a value that is written stands before the equals sign of each
// node that writes it.
#include <cohort/torch/graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "graph/names.h"

namespace cohort {

namespace {

using graph_names::bytes_text;
using graph_names::counted;

class GraphPrinter {
 public:
  explicit GraphPrinter(const Graph& graph) : graph_(graph), names_(graph_names::value_names(graph)) {
    for (const auto& value : graph.values) {
      if (device_ && *device_ != value.device) {
        device_.reset();
        break;
      }
      device_ = value.device;
    }
  }

  std::string print() {
    add_head();
    add_inputs();
    add_nodes();
    if (!graph_.outputs.empty()) {
      std::vector<std::string_view> outputs;
      for (const auto value : graph_.outputs) outputs.emplace_back(names_[value]);
      add("returns {}\n", fmt::join(outputs, ", "));
    }
    return std::move(text_);
  }

 private:
  /// Columns are aligned up to this width; what is wider moves its own line only.
  static constexpr std::size_t widest_column = 48;
  static constexpr std::size_t longest_text = 120;
  static constexpr std::size_t longest_list = 8;

  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  /// A graph that was read may have anything in its texts.
  static std::string shown(std::string_view text) { return graph_names::shortened(text, longest_text); }

  void add_head() {
    std::size_t collectives = 0;
    std::size_t bytes = 0;
    std::size_t waits = 0;
    std::size_t host = 0;
    for (const auto* const node : all_nodes(graph_)) {
      if (node->kind == GraphNode::Kind::collective) {
        ++collectives;
        bytes += node->bytes;
      }
      waits += static_cast<std::size_t>(node->kind == GraphNode::Kind::wait);
      host += static_cast<std::size_t>(node->kind == GraphNode::Kind::host);
    }
    add("graph{}: {}", device_ ? " on " + *device_ : "", counted(graph_.nodes.size(), "node"));
    if (collectives > 0) add(", {} ({})", counted(collectives, "collective"), bytes_text(bytes));
    if (waits > 0) add(", {}", counted(waits, "wait"));
    if (host > 0) add(", {}", counted(host, "host action"));
    const std::string* group = nullptr;
    for (const auto& each : summarize(graph_)) {
      if (group == nullptr || *group != each.group) {
        const auto label = graph_names::label_of(graph_, each.group);
        add("\n  on {}{} ({}): ", graph_names::in_quotes(each.group), label.empty() ? "" : ", " + shown(label) + ",",
            counted(static_cast<std::size_t>(each.group_size), "rank"));
      } else {
        add(", ");
      }
      add("{} {} ({})", each.count, shown(each.operation), bytes_text(each.bytes));
      group = &each.group;
    }
    add("\n");
  }

  /// The type where a value is made: with all that a type can have.
  std::string full_type(const GraphValue& value) const {
    auto text = to_string(value);
    if (!graph_names::is_row_major(value)) text += fmt::format(" strides [{}]", fmt::join(value.strides, ", "));
    if (!device_) text += " on " + value.device;
    return text;
  }

  void add_inputs() {
    std::vector<bool> is_used(graph_.values.size(), false);
    for (const auto* const node : all_nodes(graph_)) {
      for (const auto& operand : node->operands) {
        for (const auto value : operand.values) is_used[value] = true;
      }
      for (const auto value : node->writes) is_used[value] = true;
    }
    for (const auto value : graph_.outputs) is_used[value] = true;
    std::size_t width = 0;
    std::vector<std::size_t> inputs;
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      if (graph_.values[i].origin == GraphValue::Origin::result) continue;
      inputs.push_back(i);
      width = std::max(width, std::min(names_[i].size(), widest_column));
    }
    if (!inputs.empty()) add("inputs:\n");
    for (const auto i : inputs) {
      add("  {:<{}}: {}{}\n", names_[i], width, full_type(graph_.values[i]), is_used[i] ? "" : ", unused");
    }
  }

  std::string made_by(const GraphNode& node) const {
    std::vector<std::string> made;
    for (const auto value : node.results) {
      made.push_back(fmt::format("{}: {}", names_[value], full_type(graph_.values[value])));
    }
    for (const auto value : node.writes) made.push_back(names_[value] + "!");
    cut(made);
    return fmt::format("{}", fmt::join(made, ", "));
  }

  static void cut(std::vector<std::string>& list) {
    if (list.size() <= longest_list) return;
    const auto more = list.size() - (longest_list - 2);
    list.resize(longest_list - 2);
    list.push_back(fmt::format("... {} more", more));
  }

  std::string tensor(std::size_t value) const {
    return fmt::format("{}: {}", names_[value], to_string(graph_.values[value]));
  }

  std::string value_of(const GraphOperand& operand) const {
    if (!operand.is_list && operand.values.size() == 1 && operand.text.empty()) return tensor(operand.values.front());
    if (operand.values.empty() && !operand.is_list) {
      return operand.text.empty() ? "none" : shown(operand.text);
    }
    std::vector<std::string> list;
    for (const auto value : operand.values) list.push_back(tensor(value));
    cut(list);
    return fmt::format("[{}]", fmt::join(list, ", "));
  }

  /// What a collective's line says elsewhere, or twice.
  bool is_redundant(const GraphNode& node, const GraphOperand& operand) const {
    if (graph_names::repeats_group(node, operand)) return true;
    if (operand.name == "out") {
      const auto* const in = graph_names::find_operand(node, "in");
      return in != nullptr && in->values == operand.values;
    }
    return operand.name == "dtype" && operand.values.empty() && !node.operands.front().values.empty() &&
           operand.text == graph_.values[node.operands.front().values.front()].dtype;
  }

  std::vector<std::string> operands_of_collective(const GraphNode& node) const {
    std::vector<std::string> list;
    const auto* const reduction = graph_names::reduction_of(node);
    for (const auto& operand : node.operands) {
      if (is_redundant(node, operand)) continue;
      const auto text = operand.values.size() == 1 ? tensor(operand.values.front()) : value_of(operand);
      if (&operand == reduction) {
        list.push_back(shown(graph_names::unquoted(operand.text)));
      } else if (list.empty() && !operand.values.empty()) {
        list.push_back(text);
      } else {
        list.push_back(shown(operand.name) + "=" + text);
      }
    }
    return list;
  }

  /// The tensors in front need no names.
  std::vector<std::string> operands_of(const GraphNode& node) const {
    if (node.kind == GraphNode::Kind::collective) return operands_of_collective(node);
    std::vector<std::string> list;
    bool is_first_part = true;
    for (const auto& operand : node.operands) {
      is_first_part = is_first_part && !operand.values.empty();
      const bool has_name = !is_first_part && !operand.name.empty();
      list.push_back(has_name ? shown(operand.name) + "=" + value_of(operand) : value_of(operand));
    }
    return list;
  }

  void add_nodes() {
    if (graph_.nodes.empty()) return;
    std::size_t width = 0;
    for (const auto* const node : all_nodes(graph_)) {
      const auto made = made_by(*node).size();
      if (made <= widest_column) width = std::max(width, made);
    }
    const auto digits = std::to_string(graph_.nodes.size() - 1).size();
    add("nodes:\n");
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      add("  {:>{}}  ", i, digits);
      add_node(graph_.nodes[i], width);
      for (const auto& inner : graph_.nodes[i].body) {
        add("  {:>{}}  ", "|", digits);
        add_node(inner, width);
      }
    }
  }

  /// The rest of its line.
  void add_node(const GraphNode& node, std::size_t width) {
    const auto made = made_by(node);
    add("{:<{}} {} {}", made, width, made.empty() ? " " : "=", node.name.empty() ? "host" : shown(node.name));
    if (const auto list = operands_of(node); !list.empty() || node.kind != GraphNode::Kind::host) {
      add("({})", fmt::join(list, ", "));
    }
    if (node.kind == GraphNode::Kind::collective) {
      add(" on {} ({}, {}){}", graph_names::in_quotes(node.group),
          counted(static_cast<std::size_t>(node.group_size), "rank"), bytes_text(node.bytes),
          node.is_async ? ", async" : "");
    }
    if (!node.source.empty()) add("  # {}", shown(node.source));
    add("\n");
  }

  const Graph& graph_;
  std::vector<std::string> names_;
  std::optional<std::string> device_;  // if there is one for all values
  std::string text_;
};

}  // namespace

std::string to_string(const GraphValue& value) {
  return fmt::format("{}[{}]", value.dtype, fmt::join(value.sizes, ", "));
}

std::string to_string(const Graph& graph) {
  return GraphPrinter(graph).print();
}

std::ostream& operator<<(std::ostream& out, const Graph& graph) {
  return out << to_string(graph);
}

}  // namespace cohort
