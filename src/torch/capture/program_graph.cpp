// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include "torch/capture/instruction_name.h"
#include "torch/capture/program.h"

namespace cohort::recording {

namespace {

std::vector<GraphOperand> operands_of(const Instruction& instruction) {
  const auto& arguments = instruction.op->schema().arguments();
  std::vector<GraphOperand> operands;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& constant = instruction.arguments[i];
    GraphOperand operand{.name = arguments[i].name()};
    for (const auto& each : instruction.tensors) {
      if (each.position == i) operand.values.push_back(each.value);
    }
    operand.is_list = constant.isTensorList() || constant.isOptionalTensorList();
    const auto is_of_host = [i](const HostNumber& each) { return each.position == i; };
    if (std::any_of(instruction.host_numbers.begin(), instruction.host_numbers.end(), is_of_host)) {
      operand.text = "host";
    } else if (operand.values.empty() && !operand.is_list) {
      operand.text = constant_text(constant);
    }
    operands.push_back(std::move(operand));
  }
  return operands;
}

bool reduces(OpType type) {
  return type == OpType::all_reduce || type == OpType::reduce || type == OpType::reduce_scatter ||
         type == OpType::reduce_scatter_single;
}

bool has_root(OpType type) {
  return type == OpType::broadcast || type == OpType::reduce || type == OpType::gather || type == OpType::scatter;
}

void add_operands(const Collective& collective, GraphNode& node) {
  GraphOperand inputs{.name = "in", .is_list = true};
  GraphOperand outputs{.name = "out", .is_list = true};
  for (const auto& each : collective.ins) inputs.values.push_back(each.value);
  for (const auto& each : collective.outs) outputs.values.push_back(each.value);
  if (!inputs.values.empty()) node.operands.push_back(std::move(inputs));
  if (!outputs.values.empty()) node.operands.push_back(std::move(outputs));
  const auto& operation = collective.operation;
  node.operands.push_back({.name = "dtype", .text = std::string(to_string(operation.dtype))});
  if (reduces(operation.type)) {
    node.operands.push_back({.name = "op", .text = std::string(to_string(operation.reduce.kind()))});
  }
  if (has_root(operation.type)) node.operands.push_back({.name = "root", .text = std::to_string(operation.root)});
  std::size_t in = 0;
  std::size_t out = 0;
  for (const auto& each : collective.ins) in += each.bytes;
  for (const auto& each : collective.outs) out += each.bytes;
  node.bytes += std::max(in, out);
  for (const auto& each : collective.members) add_operands(each, node);
}

}  // namespace

Graph graph_of(const Program& program) {
  Graph graph;
  for (const auto& each : program.groups) {
    auto label = each->group_desc();
    if (label.empty()) label = each->group_name();
    graph.groups.push_back({.id = each->id(), .label = std::move(label), .ranks = each->global_ranks()});
  }
  for (const auto& each : program.values) graph.values.push_back(each.shown);
  for (const auto& each : program.instructions) {
    GraphNode node{.kind = each.kind, .name = name_of(each)};
    for (const auto& result : each.results) node.results.push_back(result.value);
    node.writes = each.writes;
    if (each.group != nullptr) {
      node.group = each.group->id();
      node.group_size = each.group->size();
    }
    if (each.op) {
      node.operands = operands_of(each);
      if (each.kind == GraphNode::Kind::collective) {
        std::size_t in = 0;
        std::size_t out = 0;
        for (const auto id : each.reads) in += bytes_of(graph.values[id]);
        for (const auto id : node.results) out += bytes_of(graph.values[id]);
        node.bytes = std::max(in, out);
        node.is_async = !each.is_blocking;
      }
    } else if (each.collective != nullptr) {
      add_operands(*each.collective, node);
      node.is_async = each.collective->options.async_op;
    } else if (each.flight) {
      auto& waited = each.writes.empty() ? each.reads : each.writes;
      if (!waited.empty()) node.operands.push_back({.name = "in", .values = waited, .is_list = true});
    }
    graph.nodes.push_back(std::move(node));
  }
  for (const auto& each : program.outputs) {
    if (each.value) graph.outputs.push_back(*each.value);
  }
  return graph;
}

}  // namespace cohort::recording
