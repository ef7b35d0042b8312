// SPDX-License-Identifier: BSD-3-Clause
//
// How the parts of a graph are called in printed graphs, pictures and messages.
#pragma once

#include <cohort/torch/graph.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::graph_names {

/// For each value "%12", "%arg0" or "@fc1.weight". No two are equal.
std::vector<std::string> value_names(const Graph& graph);

bool is_row_major(const GraphValue& value);

/// "512 B", "1.5 MiB"
std::string bytes_text(std::size_t bytes);

/// "1 wait", "2 waits"
std::string counted(std::size_t count, std::string_view noun);

/// In double quotes, on one line, with escapes for what cannot be shown.
std::string in_quotes(std::string_view text);

/// The text, on one line; if it is longer than `limit`, only its beginning and its length.
std::string shortened(std::string_view text, std::size_t limit);

/// Without the quotes in which the printer of libtorch puts strings.
std::string_view unquoted(std::string_view text);

/// The operand with this name, or null.
const GraphOperand* find_operand(const GraphNode& node, std::string_view name);

/// The label of the group with this id; empty if it has none.
std::string_view label_of(const Graph& graph, std::string_view group);

/// What people call the group: its label, "world" if it has all ranks, else its id.
std::string_view name_of_group(const Graph& graph, std::string_view group);

/// A collective's reduction, or null.
const GraphOperand* reduction_of(const GraphNode& node);

/// A collective as groups name it (op_type.h): what a functional collective is on the group, since on other ranks the
/// same collective may have been called there.
std::string_view operation_of(const GraphNode& node);

/// Whether it only repeats the node's group, which is shown in another place.
bool repeats_group(const GraphNode& node, const GraphOperand& operand);

}  // namespace cohort::graph_names
