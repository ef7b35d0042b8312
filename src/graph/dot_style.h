// SPDX-License-Identifier: BSD-3-Clause
//
// What the pictures of graphs (dot.cpp, folded_dot.cpp) have in common.
#pragma once

#include <cohort/torch/graph.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::graph_dot {

/// Of what comes from the graph, in a label.
inline constexpr std::size_t longest_label = 32;

/// The lines of a label, within double quotes.
std::string label(const std::vector<std::string>& lines);

/// The first lines, which set how everything looks.
std::string_view head();

/// Without libtorch's prefix; "host" if it has no name.
std::string short_name(const GraphNode& node);

/// What a group is called, and how much a collective on it moves.
std::vector<std::string> lines_of_collective(const Graph& graph, const GraphNode& node);

/// Whether the place of the node in time matters, and not only what it uses: collectives and waits.
bool is_issued_in_order(const GraphNode& node);
/// Whether what follows begins after it whatever it uses: blocking collectives and waits.
bool is_waited_for(const GraphNode& node);

/// The attributes of nodes, with a colour for each group.
class Styles {
 public:
  /// Behind the label.
  std::string of(const GraphNode& node);

 private:
  std::string_view colour_of(const std::string& group);
  std::string of_body(const GraphNode& node);

  std::vector<std::string> groups_;
};

/// The parts of a training step, as far as operators tell them. Backward begins with the first operator that is named
/// so, or the gradient of the loss before it, the optimizer where parameters begin to be written after that.
struct Phases {
  std::size_t backward;   ///< the first node of it; the number of nodes if there is none
  std::size_t optimizer;  ///< likewise
  std::string_view of(std::size_t node) const {
    return node < backward ? "forward" : node < optimizer ? "backward" : "optimizer";
  }
};
Phases phases_of(const Graph& graph);

/// Frames around the phases, if there are several. `names` are those of the picture's boxes, and `nodes` the first node
/// of each.
std::string frames(const Phases& phases, const std::vector<std::string>& names, const std::vector<std::size_t>& nodes);

/// As to_dot() with folding.
std::string draw_folded(const Graph& graph);

}  // namespace cohort::graph_dot
