// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/graph.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "graph/names.h"

namespace cohort {

namespace graph_names {

std::string_view operation_of(const GraphNode& node) {
  constexpr std::string_view functional = "cohort::";
  constexpr std::array names{
      std::pair<std::string_view, std::string_view>{"all_reduce_", "all_reduce"},
      std::pair<std::string_view, std::string_view>{"all_reduce_coalesced_", "all_reduce_coalesced"},
      std::pair<std::string_view, std::string_view>{"all_gather_into_tensor", "all_gather_single"},
      std::pair<std::string_view, std::string_view>{"all_gather_into_tensor_out", "all_gather_single"},
      std::pair<std::string_view, std::string_view>{"all_gather_into_tensor_coalesced", "all_gather_coalesced"},
      std::pair<std::string_view, std::string_view>{"reduce_scatter_tensor", "reduce_scatter_single"},
      std::pair<std::string_view, std::string_view>{"broadcast_", "broadcast"},
      std::pair<std::string_view, std::string_view>{"shard_dim_alltoall", "all_to_all_single"},
  };
  std::string_view name = node.name;
  if (!name.starts_with(functional)) return name;
  name.remove_prefix(functional.size());
  const auto* const found =
      std::find_if(names.begin(), names.end(), [&](const auto& each) { return each.first == name; });
  return found == names.end() ? name : found->second;
}

}  // namespace graph_names

namespace {

using graph_names::operation_of;

bool is_one_to_one(std::string_view operation) {
  return operation == "send" || operation == "recv" || operation == "recv_any_source";
}

/// Ranks may send different amounts to each other, or need memory on the root alone.
bool may_differ_in_bytes(std::string_view operation) {
  return operation.starts_with("all_to_all") || operation == "gather" || operation == "scatter" ||
         operation == "coalesced" || operation == "barrier";
}

std::string_view dtype_of_collective(const Graph& graph, const GraphNode& node) {
  if (const auto* const dtype = graph_names::find_operand(node, "dtype")) return graph_names::unquoted(dtype->text);
  for (const auto& operand : node.operands) {
    if (!operand.values.empty()) return graph.values[operand.values.front()].dtype;
  }
  if (!node.writes.empty()) return graph.values[node.writes.front()].dtype;
  return node.results.empty() ? std::string_view() : graph.values[node.results.front()].dtype;
}

}  // namespace

std::size_t bytes_of(const GraphValue& value) {
  auto bytes = value.element_bytes;
  for (const auto size : value.sizes) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

std::vector<const GraphNode*> all_nodes(const Graph& graph) {
  std::vector<const GraphNode*> nodes;
  for (const auto& node : graph.nodes) {
    nodes.push_back(&node);
    for (const auto& each : node.body) nodes.push_back(&each);
  }
  return nodes;
}

std::vector<CollectiveSummary> summarize(const Graph& graph) {
  std::vector<CollectiveSummary> summary;
  for (const auto* const each_node : all_nodes(graph)) {
    const auto& node = *each_node;
    if (node.kind != GraphNode::Kind::collective) continue;
    const auto operation = operation_of(node);
    const auto same_group = [&](const CollectiveSummary& each) {
      return each.group == node.group && each.group_size == node.group_size;
    };
    auto found = std::find_if(summary.begin(), summary.end(), [&](const CollectiveSummary& each) {
      return same_group(each) && each.operation == operation;
    });
    if (found == summary.end()) {
      const auto last = std::find_if(summary.rbegin(), summary.rend(), same_group);
      found = summary.insert(last == summary.rend() ? summary.end() : last.base(),
                             {.group = node.group, .group_size = node.group_size, .operation = std::string(operation)});
    }
    ++found->count;
    found->async_count += static_cast<std::size_t>(node.is_async);
    found->bytes += node.bytes;
  }
  return summary;
}

std::vector<std::string> collectives_of(const Graph& graph, std::string_view group) {
  std::vector<std::string> lines;
  for (const auto* const each_node : all_nodes(graph)) {
    const auto& node = *each_node;
    const auto operation = operation_of(node);
    if (node.kind != GraphNode::Kind::collective || node.group != group || is_one_to_one(operation)) continue;
    if (operation == "coalesced" && graph_names::find_operand(node, "peer") != nullptr)
      continue;  // a batch of messages
    std::string line(operation);
    if (const auto dtype = dtype_of_collective(graph, node); !dtype.empty()) line += fmt::format(" {}", dtype);
    if (const auto* const reduce = graph_names::reduction_of(node)) {
      line += fmt::format(" {}", graph_names::unquoted(reduce->text));
    }
    if (const auto* const root = graph_names::find_operand(node, "root")) line += fmt::format(", root {}", root->text);
    if (!may_differ_in_bytes(operation)) line += fmt::format(", {} bytes", node.bytes);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace cohort
