// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/graph_partition.h"

#include <cohort/capabilities.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "torch/capture/instruction_name.h"
#include "torch/capture/operator_traits.h"

namespace cohort::recording {

namespace {

/// A number that libtorch made a tensor of: kernels get it by value.
bool is_number(const Value& value) {
  return value.constant.defined() && value.constant.unsafeGetTensorImpl()->is_wrapped_number();
}

template <class Function>
void each_value(const Instruction& instruction, const Function& function) {
  for (const auto id : instruction.reads) function(id);
  for (const auto id : instruction.writes) function(id);
  for (const auto& each : instruction.results) function(each.value);
}

bool draws_random_numbers(const Instruction& instruction) {
  const auto* const call = instruction.as<OperatorCall>();
  return call != nullptr && traits_of(call->op).is_random;
}

/// Collects the tail, in the order of the program.
class Tail {
 public:
  explicit Tail(const Program& program) : values_(program.values) {}

  /// Whether the instruction has to come after one of the tail.
  bool precedes(const Instruction& each) const {
    const auto in = [&](const std::unordered_set<std::size_t>& storages) {
      return [&](ValueId id) { return storages.contains(values_[id].storage); };
    };
    const auto is_made_here = [&](ValueId id) { return made_.contains(id); };
    const auto any = [](const std::vector<ValueId>& ids, const auto& test) {
      return std::any_of(ids.begin(), ids.end(), test);
    };
    return any(each.reads, is_made_here) || any(each.writes, is_made_here) || any(each.reads, in(written_)) ||
           any(each.writes, in(written_)) || any(each.writes, in(read_)) ||
           (draws_random_numbers(each) && draws_random_numbers_) || groups_.contains(group_of(each));
  }

  void add(const Instruction& each) {
    std::unordered_set<std::size_t> seen;
    for (const auto id : each.reads) seen.insert(values_[id].storage);
    for (const auto id : each.writes) {
      seen.insert(values_[id].storage);
      written_.insert(values_[id].storage);
    }
    for (const auto& result : each.results) {
      made_.insert(result.value);
      // A view shows memory that was there before, and writes none.
      if (!seen.contains(values_[result.value].storage)) written_.insert(values_[result.value].storage);
    }
    read_.insert(seen.begin(), seen.end());
    draws_random_numbers_ |= draws_random_numbers(each);
    if (auto group = group_of(each)) groups_.insert(std::move(group));
  }

 private:
  const std::vector<Value>& values_;
  std::unordered_set<ValueId> made_;
  std::unordered_set<std::size_t> read_;  // storages
  std::unordered_set<std::size_t> written_;
  std::unordered_set<ProcessGroupPtr> groups_;
  bool draws_random_numbers_ = false;
};

/// A collective in the graph whose wait came into the tail.
std::optional<std::size_t> torn_collective(const Program& program, const GraphPartition& parts) {
  std::unordered_map<std::size_t, std::size_t> started;  // by flight
  for (const auto i : parts.graph) {
    const auto& each = program.instructions[i];
    if (const auto* const call = each.as<CollectiveCall>(); call != nullptr && call->flight) {
      started.emplace(*call->flight, i);
    } else if (const auto* const wait = each.as<CollectiveWait>()) {
      started.erase(wait->flight);
    }
  }
  return started.empty() ? std::nullopt : std::optional(started.begin()->second);
}

/// Square roots in the graph that the tail alone uses; false if there are none.
bool mark_roots_of_tail(const Program& program, const GraphPartition& parts, std::vector<bool>& is_direct) {
  std::unordered_set<std::size_t> in_graph;  // storages that something in the graph reads or the caller gets
  const auto use = [&](ValueId id) { in_graph.insert(program.values[id].storage); };
  for (const auto i : parts.graph) {
    for (const auto id : program.instructions[i].reads) use(id);
    for (const auto id : program.instructions[i].writes) use(id);
  }
  for (const auto& each : program.outputs) {
    if (each.value) use(*each.value);
  }
  for (const auto& each : program.final_gradients) {
    if (each.tensor.value) use(*each.tensor.value);
  }
  bool found = false;
  for (const auto i : parts.graph) {
    const auto& each = program.instructions[i];
    if (name_of(each) != "aten::sqrt" || in_graph.contains(program.values[each.results.front().value].storage))
      continue;
    is_direct[i] = true;
    found = true;
  }
  return found;
}

}  // namespace

std::string obstacle(const Program& program, const Instruction& instruction) {
  if (const auto* const call = instruction.as<OpaqueCall>()) {
    return fmt::format("the host runs the function \"{}\"", call->name);
  }
  std::string found;
  each_value(instruction, [&](ValueId id) {
    const auto& value = program.values[id];
    if (!found.empty() || is_on_gpu(value) || is_number(value)) return;
    found =
        fmt::format("{} uses a tensor on the {}, {}", name_of(instruction), value.shown.device, to_string(value.shown));
  });
  const auto group = group_of(instruction);
  if (!found.empty() || group == nullptr) return found;
  if (instruction.reads.empty() && instruction.writes.empty()) {
    return fmt::format("{} on group {} makes the host wait", name_of(instruction), group->id());
  }
  if (!group->capabilities("cuda").stream_ordered) {
    return fmt::format("{} on group {} goes through the host: its backend does not work on streams",
                       name_of(instruction), group->id());
  }
  return found;
}

GraphPartition partition(const Program& program, std::vector<bool> is_direct) {
  bool has_looked_for_roots = false;
  for (;;) {
    GraphPartition parts;
    Tail tail(program);
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const auto& each = program.instructions[i];
      if (each.as<HostCall>() != nullptr) continue;
      if (is_direct[i] || tail.precedes(each)) {
        tail.add(each);
        parts.tail.push_back(i);
      } else {
        parts.graph.push_back(i);
      }
    }
    if (const auto torn = torn_collective(program, parts)) {
      is_direct[*torn] = true;
    } else if (std::exchange(has_looked_for_roots, true) || !mark_roots_of_tail(program, parts, is_direct)) {
      return parts;
    }
  }
}

}  // namespace cohort::recording
