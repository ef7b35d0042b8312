// SPDX-License-Identifier: BSD-3-Clause
//
// The picture of a large graph: what communicates is drawn node by node, and a run of other nodes as one box that says
// which operators it has. Edges between two boxes are one, with the bytes of the tensors; a dotted one says that
// one comes after the other. Of the inputs only the arguments of the step are drawn.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "graph/dot_style.h"
#include "graph/names.h"

namespace cohort::graph_dot {

namespace {

constexpr std::size_t most_operators = 5;
constexpr std::size_t none = static_cast<std::size_t>(-1);

/// Nodes from `first` to the one before `end`.
struct Box {
  std::size_t first;
  std::size_t end;
};

enum class Part { compute, wait, collective };

Part part_of(const GraphNode& node) {
  if (node.kind == GraphNode::Kind::wait) return Part::wait;
  const bool communicates = node.kind == GraphNode::Kind::collective ||
                            std::any_of(node.body.begin(), node.body.end(),
                                        [](const GraphNode& each) { return each.kind == GraphNode::Kind::collective; });
  return communicates ? Part::collective : Part::compute;
}

std::vector<Box> boxes_of(const Graph& graph, const Phases& phases) {
  std::vector<Box> boxes;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto part = part_of(graph.nodes[i]);
    const bool goes_on =
        i > 0 && part != Part::collective && part == part_of(graph.nodes[i - 1]) && phases.of(i) == phases.of(i - 1);
    if (!goes_on) boxes.push_back({i, i});
    boxes.back().end = i + 1;
  }
  return boxes;
}

class FoldedPicture {
 public:
  explicit FoldedPicture(const Graph& graph)
      : graph_(graph), phases_(phases_of(graph)), boxes_(boxes_of(graph, phases_)), maker_(graph.values.size(), none) {}

  std::string draw() {
    text_ = head();
    std::vector<std::string> names;
    std::vector<std::size_t> firsts;
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      add_box(i);
      names.push_back(fmt::format("box{}", i));
      firsts.push_back(boxes_[i].first);
    }
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      add("  output{} [label=\"returned {}\", shape=oval, fillcolor=\"#ffffff\"];\n", i, i);
      if (const auto maker = maker_[graph_.outputs[i]]; maker != none) add("  box{} -> output{};\n", maker, i);
    }
    text_ += frames(phases_, names, firsts);
    return std::move(text_) + "}\n";
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  std::vector<std::string> lines_of(const Box& box) const {
    const auto count = box.end - box.first;
    const auto& first = graph_.nodes[box.first];
    if (count == 1) {
      std::vector<std::string> lines{fmt::format("{}  {}", box.first, short_name(first))};
      if (first.kind == GraphNode::Kind::collective) {
        for (auto& each : lines_of_collective(graph_, first)) lines.push_back(std::move(each));
      }
      return lines;
    }
    const auto last = box.end - 1;
    if (part_of(first) == Part::wait) return {fmt::format("{} to {}  {} waits", box.first, last, count)};
    std::map<std::string, std::size_t> counts;
    for (auto i = box.first; i < box.end; ++i) ++counts[short_name(graph_.nodes[i])];
    std::vector<std::pair<std::string, std::size_t>> sorted(counts.begin(), counts.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::vector<std::string> lines{fmt::format("{} to {}  {} operators", box.first, last, count)};
    for (std::size_t i = 0; i < std::min(sorted.size(), most_operators); ++i) {
      lines.push_back(sorted[i].second > 1 ? fmt::format("{} x {}", sorted[i].second, sorted[i].first)
                                           : sorted[i].first);
    }
    if (sorted.size() > most_operators) lines.push_back(fmt::format("and {} more", sorted.size() - most_operators));
    return lines;
  }

  void add_box(std::size_t index) {
    const auto& box = boxes_[index];
    const auto& first = graph_.nodes[box.first];
    const bool is_run = part_of(first) == Part::compute && box.end - box.first > 1;
    add("  box{} [label=\"{}\"{}];\n", index, label(lines_of(box)), is_run ? "" : styles_.of(first));
    std::map<std::size_t, std::set<std::size_t>> used;  // by the box that made them
    for (auto i = box.first; i < box.end; ++i) {
      const auto& node = graph_.nodes[i];
      const auto use = [&](std::size_t value) {
        if (maker_[value] == none) {
          add_argument(value, index);
        } else if (maker_[value] != index) {
          used[maker_[value]].insert(value);
        }
      };
      for (const auto& operand : node.operands) std::for_each(operand.values.begin(), operand.values.end(), use);
      std::for_each(node.writes.begin(), node.writes.end(), use);
      const auto make = [&](std::size_t value) { maker_[value] = index; };
      std::for_each(node.results.begin(), node.results.end(), make);
      std::for_each(node.writes.begin(), node.writes.end(), make);
      for (const auto& each : node.body) {
        std::for_each(each.results.begin(), each.results.end(), make);
        std::for_each(each.writes.begin(), each.writes.end(), make);
      }
    }
    for (const auto& [from, values] : used) add_edge(from, index, values);
    if (index > 0 && !used.contains(index - 1)) {
      const auto& before = graph_.nodes[boxes_[index - 1].first];
      if (is_issued_in_order(first) || is_waited_for(before)) {
        add("  box{} -> box{} [style=dotted];\n", index - 1, index);
      }
    }
  }

  void add_argument(std::size_t value, std::size_t box) {
    if (graph_.values[value].origin != GraphValue::Origin::argument || !edges_.emplace(value, box).second) return;
    if (drawn_.insert(value).second) {
      add("  value{} [label=\"{}\", shape=oval, fillcolor=\"#ffffff\", penwidth=2];\n", value,
          label({fmt::format("argument {}", drawn_.size() - 1), to_string(graph_.values[value])}));
    }
    add("  value{} -> box{};\n", value, box);
  }

  void add_edge(std::size_t from, std::size_t to, const std::set<std::size_t>& values) {
    std::size_t bytes = 0;
    for (const auto value : values) bytes += bytes_of(graph_.values[value]);
    const auto size = graph_names::bytes_text(bytes);
    add("  box{} -> box{} [label=\"{}\"];\n", from, to,
        values.size() == 1 ? size : fmt::format("{} tensors, {}", values.size(), size));
  }

  const Graph& graph_;
  Phases phases_;
  std::vector<Box> boxes_;
  std::vector<std::size_t> maker_;                       // the box that made or wrote each value last
  std::set<std::size_t> drawn_;                          // arguments
  std::set<std::pair<std::size_t, std::size_t>> edges_;  // of arguments
  Styles styles_;
  std::string text_;
};

}  // namespace

std::string draw_folded(const Graph& graph) {
  return FoldedPicture(graph).draw();
}

}  // namespace cohort::graph_dot
