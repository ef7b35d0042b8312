// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/torch/graph.h>

#include <string>

namespace cohort::plan {

/// Draws the graph into a file, by Graphviz's dot, in the format that the file's name ends with (svg, png, pdf); a name
/// that ends with .dot gets the text that dot reads. Throws a ValueError for other names, and an Error that says how to
/// install dot if it is missing.
void draw_graph(const Graph& graph, const GraphPictureOptions& options, const std::string& path);

}  // namespace cohort::plan
