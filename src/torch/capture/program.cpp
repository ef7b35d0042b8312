// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/program.h"

#include <unordered_map>

namespace cohort::recording {

GraphNode::Kind kind_of(const Instruction& instruction) {
  using Kind = GraphNode::Kind;
  if (const auto* const call = instruction.as<OperatorCall>()) {
    if (call->is_wait) return Kind::wait;
    return call->group != nullptr ? Kind::collective : Kind::op;
  }
  if (instruction.as<CollectiveCall>() != nullptr) return Kind::collective;
  if (instruction.as<CollectiveWait>() != nullptr) return Kind::wait;
  return instruction.as<DistributedCall>() != nullptr ? Kind::distributed : Kind::host;
}

ProcessGroupPtr group_of(const Instruction& instruction) {
  if (const auto* const call = instruction.as<OperatorCall>()) return call->group;
  if (const auto* const call = instruction.as<CollectiveCall>()) return call->group;
  const auto* const wait = instruction.as<CollectiveWait>();
  return wait != nullptr ? wait->group : nullptr;
}

std::vector<bool> used_values(const Program& program) {
  std::vector<bool> is_used(program.values.size());
  const auto use = [&](const std::optional<ValueId>& id) {
    if (id) is_used[*id] = true;
  };
  for (const auto& each : program.instructions) {
    for (const auto id : each.reads) is_used[id] = true;
    for (const auto id : each.writes) is_used[id] = true;
  }
  for (const auto& each : program.outputs) use(each.value);
  for (const auto& each : program.final_gradients) use(each.tensor.value);
  return is_used;
}

std::vector<bool> lie_in_shared_memory(const Program& program, const std::vector<bool>& is_used) {
  std::unordered_map<std::size_t, std::size_t> owners;  // of each storage
  for (ValueId id = 0; id < program.values.size(); ++id) {
    const auto& value = program.values[id];
    if (is_used[id] && value.shown.origin != GraphValue::Origin::result) ++owners[value.storage];
  }
  std::vector<bool> are_shared(program.values.size());
  for (ValueId id = 0; id < program.values.size(); ++id) {
    const auto& value = program.values[id];
    are_shared[id] = is_used[id] && (value.has_two_names || owners[value.storage] > 1);
  }
  return are_shared;
}

}  // namespace cohort::recording
