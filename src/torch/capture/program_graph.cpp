// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include "torch/capture/instruction_name.h"
#include "torch/capture/program.h"

namespace cohort::recording {

namespace {

std::vector<GraphOperand> operands_of(const OperatorCall& call, const Instruction& instruction) {
  const auto& arguments = call.op.schema().arguments();
  std::vector<GraphOperand> operands;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& constant = call.arguments[i];
    GraphOperand operand{.name = arguments[i].name()};
    for (const auto& each : instruction.tensors) {
      if (each.position == i) operand.values.push_back(each.value);
    }
    operand.is_list = constant.isTensorList() || constant.isOptionalTensorList();
    const auto is_of_host = [i](const HostNumber& each) { return each.position == i; };
    if (std::any_of(call.host_numbers.begin(), call.host_numbers.end(), is_of_host)) {
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
  if (is_p2p(operation.type)) node.operands.push_back({.name = "peer", .text = std::to_string(operation.peer)});
  if (has_root(operation.type)) node.operands.push_back({.name = "root", .text = std::to_string(operation.root)});
  std::size_t in = 0;
  std::size_t out = 0;
  for (const auto& each : collective.ins) in += each.bytes;
  for (const auto& each : collective.outs) out += each.bytes;
  node.bytes += std::max(in, out);
  for (const auto& each : collective.members) add_operands(each, node);
}

GraphNode node_of(const Instruction& instruction, const std::vector<GraphValue>& values) {
  GraphNode node{.kind = kind_of(instruction), .name = name_of(instruction)};
  for (const auto& result : instruction.results) node.results.push_back(result.value);
  node.writes = instruction.writes;
  node.source = source_line(instruction.calls);
  if (const auto group = group_of(instruction)) {
    node.group = group->id();
    node.group_size = group->size();
  }
  if (const auto* const call = instruction.as<OperatorCall>()) {
    node.operands = operands_of(*call, instruction);
    if (node.kind == GraphNode::Kind::collective) {
      std::size_t in = 0;
      std::size_t out = 0;
      for (const auto id : instruction.reads) in += bytes_of(values[id]);
      for (const auto id : node.results) out += bytes_of(values[id]);
      node.bytes = std::max(in, out);
      node.is_async = !call->is_blocking;
    }
  } else if (const auto* const issued = instruction.as<CollectiveCall>()) {
    add_operands(*issued->collective, node);
    node.is_async = issued->collective->options.async_op;
  } else if (instruction.as<CollectiveWait>() != nullptr) {
    const auto& waited = instruction.writes.empty() ? instruction.reads : instruction.writes;
    if (!waited.empty()) node.operands.push_back({.name = "in", .values = waited, .is_list = true});
  } else if (const auto* const opaque = instruction.as<OpaqueCall>()) {
    node.operands.push_back({.name = "function", .text = opaque->name});
    node.operands.push_back({.name = "in", .values = instruction.reads, .is_list = true});
  } else if (const auto* const distributed = instruction.as<DistributedCall>()) {
    node.operands.push_back({.name = "self", .values = instruction.reads});
    node.operands.insert(node.operands.end(), distributed->constants.begin(), distributed->constants.end());
  }
  return node;
}

/// The last instruction that uses each value, as a number that is larger than all if the step leaves the value.
std::vector<std::size_t> last_uses(const Program& program) {
  std::vector<std::size_t> last(program.values.size(), 0);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (const auto id : program.instructions[i].reads) last[id] = i;
    for (const auto id : program.instructions[i].writes) last[id] = i;
  }
  const auto leave = [&](const LeftTensor& tensor) {
    if (tensor.value) last[*tensor.value] = program.instructions.size();
  };
  for (const auto& each : program.outputs) leave(each);
  for (const auto& each : program.final_gradients) leave(each.tensor);
  return last;
}

/// A call on a distributed tensor makes and writes what its body does, as far as the rest of the step can see it.
void export_body(GraphNode& call, std::size_t end, const std::vector<std::size_t>& last_use,
                 const std::vector<GraphValue>& values) {
  for (const auto& inner : call.body) {
    for (const auto id : inner.results) {
      if (last_use[id] >= end) call.results.push_back(id);
    }
    for (const auto id : inner.writes) {
      const bool is_known = std::find(call.writes.begin(), call.writes.end(), id) != call.writes.end();
      if (values[id].origin != GraphValue::Origin::result && !is_known) call.writes.push_back(id);
    }
  }
}

}  // namespace

Graph communication_of(const Program& program) {
  Graph graph;
  for (const auto& each : program.values) graph.values.push_back(each.shown);
  for (const auto& each : program.instructions) {
    if (kind_of(each) == GraphNode::Kind::collective) graph.nodes.push_back(node_of(each, graph.values));
  }
  return graph;
}

Graph graph_of(const Program& program) {
  Graph graph;
  for (const auto& each : program.groups) {
    auto label = each->group_desc();
    if (label.empty()) label = each->group_name();
    graph.groups.push_back({.id = each->id(), .label = std::move(label), .ranks = each->global_ranks()});
  }
  for (const auto& each : program.values) graph.values.push_back(each.shown);
  const auto last_use = last_uses(program);
  const auto& instructions = program.instructions;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    auto node = node_of(instructions[i], graph.values);
    if (instructions[i].as<DistributedCall>() != nullptr) {
      // A pass may have moved a part away, which is then a node of its own.
      const auto region = instructions[i].region;
      for (; i + 1 < instructions.size() && instructions[i + 1].region == region; ++i) {
        node.body.push_back(node_of(instructions[i + 1], graph.values));
      }
      export_body(node, i + 1, last_use, graph.values);
    }
    graph.nodes.push_back(std::move(node));
  }
  for (const auto& each : program.outputs) {
    if (each.value) graph.outputs.push_back(*each.value);
  }
  return graph;
}

}  // namespace cohort::recording
