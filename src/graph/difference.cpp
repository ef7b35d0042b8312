// SPDX-License-Identifier: BSD-3-Clause
//
// Two recordings of one step number their values differently if one of them has seen a tensor more. Values are
// therefore paired where the graphs first use them, and compared by what they are paired with.
#include <cohort/torch/graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/names.h"

namespace cohort {

namespace {

using graph_names::counted;
using Difference = std::optional<std::string>;

std::string_view kind_text(GraphNode::Kind kind) {
  switch (kind) {
    case GraphNode::Kind::collective:
      return "a collective";
    case GraphNode::Kind::wait:
      return "a wait";
    case GraphNode::Kind::host:
      return "an action of the host";
    case GraphNode::Kind::distributed:
      return "a call on a distributed tensor";
    case GraphNode::Kind::op:
      break;
  }
  return "an operator";
}

class GraphComparison {
 public:
  GraphComparison(const Graph& a, const Graph& b)
      : a_{a, graph_names::value_names(a), std::vector<std::size_t>(a.values.size(), unpaired)},
        b_{b, graph_names::value_names(b), std::vector<std::size_t>(b.values.size(), unpaired)} {}

  std::string run() {
    if (auto found = compare_arguments()) return *found;
    const auto common = std::min(a_.graph.nodes.size(), b_.graph.nodes.size());
    for (std::size_t i = 0; i < common; ++i) {
      if (auto found = compare(a_.graph.nodes[i], b_.graph.nodes[i])) return fmt::format("node {}{}", i, *found);
    }
    if (a_.graph.nodes.size() != b_.graph.nodes.size()) {
      const auto& longer = a_.graph.nodes.size() > common ? a_.graph : b_.graph;
      return fmt::format("one has {} and the other {}: the first that only one has is node {}, {}",
                         counted(a_.graph.nodes.size(), "node"), b_.graph.nodes.size(), common,
                         text_of(longer.nodes[common]));
    }
    if (a_.graph.outputs.size() != b_.graph.outputs.size()) {
      return fmt::format("one returns {} and the other {}", counted(a_.graph.outputs.size(), "tensor"),
                         b_.graph.outputs.size());
    }
    for (std::size_t i = 0; i < a_.graph.outputs.size(); ++i) {
      if (auto found = compare_use(a_.graph.outputs[i], b_.graph.outputs[i])) {
        return fmt::format("the returned tensor {} is {}", i, *found);
      }
    }
    return {};
  }

 private:
  static constexpr auto unpaired = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t longest_text = 80;

  struct Side {
    const Graph& graph;
    std::vector<std::string> names;
    std::vector<std::size_t> partners;

    std::string text(std::size_t value) const {
      return fmt::format("{}: {}", names[value], to_string(graph.values[value]));
    }
    std::vector<std::size_t> arguments() const {
      std::vector<std::size_t> found;
      for (std::size_t i = 0; i < graph.values.size(); ++i) {
        if (graph.values[i].origin == GraphValue::Origin::argument) found.push_back(i);
      }
      return found;
    }
  };

  static std::string shown(std::string_view text) { return graph_names::shortened(text, longest_text); }

  static std::string text_of(const GraphNode& node) {
    return node.name.empty() ? std::string(kind_text(node.kind)) : shown(node.name);
  }

  static std::string in_both(std::string_view a, std::string_view b) {
    return fmt::format("{} in one and {} in the other", a, b);
  }

  static std::string constant_text(const GraphOperand& operand) {
    return operand.text.empty() ? "none" : shown(operand.text);
  }

  Difference compare_arguments() {
    const auto a = a_.arguments();
    const auto b = b_.arguments();
    if (a.size() != b.size()) {
      return fmt::format("one has {} and the other {}", counted(a.size(), "argument"), b.size());
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (auto found = compare_metadata(a[i], b[i])) return fmt::format("the argument %arg{} is {}", i, *found);
      pair(a[i], b[i]);
    }
    return std::nullopt;
  }

  void pair(std::size_t a, std::size_t b) {
    a_.partners[a] = b;
    b_.partners[b] = a;
  }

  Difference compare_metadata(std::size_t a, std::size_t b) const {
    const auto& x = a_.graph.values[a];
    const auto& y = b_.graph.values[b];
    if (x.dtype != y.dtype || x.element_bytes != y.element_bytes || x.sizes != y.sizes)
      return in_both(to_string(x), to_string(y));
    if (x.strides != y.strides) {
      return fmt::format("{} with strides [{}] in one and [{}] in the other", to_string(x), fmt::join(x.strides, ", "),
                         fmt::join(y.strides, ", "));
    }
    if (x.device != y.device) {
      return fmt::format("{} on {} in one and on {} in the other", to_string(x), x.device, y.device);
    }
    return std::nullopt;
  }

  /// A value that both read: either they are partners, or both are seen for the first time and look alike.
  Difference compare_use(std::size_t a, std::size_t b) {
    if (a_.partners[a] == b && b_.partners[b] == a) return std::nullopt;
    const auto& x = a_.graph.values[a];
    const auto& y = b_.graph.values[b];
    const bool are_new = a_.partners[a] == unpaired && b_.partners[b] == unpaired;
    if (!are_new || x.origin != y.origin || x.name != y.name) {
      return in_both(a_.text(a), b_.text(b)) + (a_.text(a) == b_.text(b) ? ", which was made elsewhere" : "");
    }
    if (auto found = compare_metadata(a, b)) return found;
    pair(a, b);
    return std::nullopt;
  }

  Difference compare_operand(const GraphOperand& x, const GraphOperand& y) {
    if (x.name != y.name) return fmt::format("has the operand {}", in_both(shown(x.name), shown(y.name)));
    const auto has = [&](const std::string& what) { return fmt::format("has {} = {}", shown(x.name), what); };
    if (x.values.empty() != y.values.empty()) {
      return has(in_both(x.values.empty() ? constant_text(x) : a_.text(x.values.front()),
                         y.values.empty() ? constant_text(y) : b_.text(y.values.front())));
    }
    if (x.text != y.text) {
      // The difference may be in the part that is not shown.
      const auto [shown_x, shown_y] = std::pair(constant_text(x), constant_text(y));
      return has(shown_x == shown_y ? shown_x + " in both, but they differ further on" : in_both(shown_x, shown_y));
    }
    if (x.values.size() != y.values.size() || x.is_list != y.is_list) {
      return has(in_both(counted(x.values.size(), "tensor"), counted(y.values.size(), "tensor")));
    }
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      const auto found = compare_use(x.values[i], y.values[i]);
      if (!found) continue;
      return x.is_list ? fmt::format("has {}[{}] = {}", shown(x.name), i, *found) : has(*found);
    }
    return std::nullopt;
  }

  Difference compare_made(const GraphNode& x, const GraphNode& y) {
    if (x.results.size() != y.results.size()) {
      return fmt::format("makes {} in one and {} in the other", counted(x.results.size(), "tensor"), y.results.size());
    }
    for (std::size_t i = 0; i < x.results.size(); ++i) {
      if (const auto found = compare_metadata(x.results[i], y.results[i])) return "makes " + *found;
      pair(x.results[i], y.results[i]);
    }
    if (x.writes.size() != y.writes.size()) {
      return fmt::format("writes {} in one and {} in the other", counted(x.writes.size(), "tensor"), y.writes.size());
    }
    for (std::size_t i = 0; i < x.writes.size(); ++i) {
      if (const auto found = compare_use(x.writes[i], y.writes[i])) return "writes " + *found;
    }
    return std::nullopt;
  }

  static Difference compare_communication(const GraphNode& x, const GraphNode& y) {
    if (x.group != y.group) {
      return "is on the group " + in_both(graph_names::in_quotes(x.group), graph_names::in_quotes(y.group));
    }
    if (x.group_size != y.group_size) {
      return fmt::format("has {} in one and {} in the other", counted(static_cast<std::size_t>(x.group_size), "rank"),
                         y.group_size);
    }
    if (x.bytes != y.bytes) return fmt::format("moves {} bytes in one and {} in the other", x.bytes, y.bytes);
    if (x.is_async != y.is_async) {
      return "is " + in_both(x.is_async ? "asynchronous" : "synchronous", y.is_async ? "asynchronous" : "synchronous");
    }
    return std::nullopt;
  }

  Difference compare_bodies(const GraphNode& x, const GraphNode& y) {
    if (x.body.size() != y.body.size()) {
      return fmt::format("consists of {} in one and {} in the other", counted(x.body.size(), "node"), y.body.size());
    }
    for (std::size_t i = 0; i < x.body.size(); ++i) {
      if (const auto found = compare(x.body[i], y.body[i])) return fmt::format("has a body whose node {}{}", i, *found);
    }
    return std::nullopt;
  }

  Difference compare(const GraphNode& x, const GraphNode& y) {
    if (x.name != y.name) return " is " + in_both(text_of(x), text_of(y));
    const auto of_node = [&](const std::string& what) { return fmt::format(": {} {}", text_of(x), what); };
    if (x.kind != y.kind) return of_node("is " + in_both(kind_text(x.kind), kind_text(y.kind)));
    const auto common = std::min(x.operands.size(), y.operands.size());
    for (std::size_t i = 0; i < common; ++i) {
      if (const auto found = compare_operand(x.operands[i], y.operands[i])) return of_node(*found);
    }
    if (x.operands.size() != y.operands.size()) {
      return of_node(
          fmt::format("has {} in one and {} in the other", counted(x.operands.size(), "operand"), y.operands.size()));
    }
    if (const auto found = compare_communication(x, y)) return of_node(*found);
    if (const auto found = compare_bodies(x, y)) return of_node(*found);
    if (const auto found = compare_made(x, y)) return of_node(*found);
    return std::nullopt;
  }

  Side a_;
  Side b_;
};

}  // namespace

std::string first_difference(const Graph& a, const Graph& b) {
  return GraphComparison(a, b).run();
}

}  // namespace cohort
