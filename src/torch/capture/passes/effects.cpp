// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/effects.h"

#include <algorithm>
#include <map>

#include "torch/capture/operator_traits.h"

namespace cohort::recording {

Resources::Resources(const Program& program) {
  storages_.reserve(program.values.size());
  for (const auto& each : program.values) {
    storages_.push_back(each.storage);
    first_existence_ = std::max(first_existence_, each.storage + 1);
  }
  first_existence_ += 3;
}

bool is_view(const Instruction& instruction, const Resources& resources) {
  const auto* const call = instruction.as<OperatorCall>();
  if (call == nullptr || !traits_of(call->op).is_view) return false;
  const auto is_shown = [&](const TensorPlace& result) {
    return std::any_of(instruction.reads.begin(), instruction.reads.end(),
                       [&](ValueId id) { return resources.storage_of(id) == resources.storage_of(result.value); });
  };
  return std::all_of(instruction.results.begin(), instruction.results.end(), is_shown);
}

namespace {

void make_set(std::vector<Resource>& resources) {
  std::sort(resources.begin(), resources.end());
  resources.erase(std::unique(resources.begin(), resources.end()), resources.end());
}

class EffectAnalysis {
 public:
  explicit EffectAnalysis(const Resources& resources) : resources_(resources) {}

  Effects of(const Instruction& instruction) {
    effects_ = {};
    for (const auto id : instruction.reads) effects_.reads.push_back(resources_.existence_of(id));
    for (const auto id : instruction.writes) effects_.reads.push_back(resources_.existence_of(id));
    for (const auto& each : instruction.results) effects_.writes.push_back(resources_.existence_of(each.value));
    std::visit([&](const auto& action) { add(action, instruction); }, instruction.action);
    make_set(effects_.reads);
    make_set(effects_.writes);
    return std::move(effects_);
  }

 private:
  void keep_order(Resource resource) {
    effects_.writes.push_back(resource);
    effects_.is_opaque = true;
  }

  void use_memory(const Instruction& instruction) {
    for (const auto id : instruction.reads) effects_.reads.push_back(resources_.storage_of(id));
    for (const auto id : instruction.writes) effects_.writes.push_back(resources_.storage_of(id));
    for (const auto& each : instruction.results) effects_.writes.push_back(resources_.storage_of(each.value));
  }

  void add(std::monostate /*nothing*/, const Instruction& /*instruction*/) {}

  void add(const DistributedCall& /*call*/, const Instruction& /*instruction*/) {
    effects_.is_light = true;
    effects_.is_opaque = true;
  }

  void add(const HostCall& /*call*/, const Instruction& instruction) { do_anything(instruction); }
  void add(const OpaqueCall& /*call*/, const Instruction& instruction) { do_anything(instruction); }

  void do_anything(const Instruction& instruction) {
    use_memory(instruction);
    keep_order(resources_.collectives());
    keep_order(resources_.host());
    keep_order(resources_.random());
  }

  void add(const CollectiveCall& /*call*/, const Instruction& instruction) {
    use_memory(instruction);
    keep_order(resources_.collectives());
  }

  void add(const CollectiveWait& /*wait*/, const Instruction& instruction) {
    use_memory(instruction);
    effects_.is_opaque = true;
    // An asynchronous barrier has no memory that would hold its wait.
    if (instruction.reads.empty() && instruction.writes.empty()) keep_order(resources_.collectives());
  }

  void add(const OperatorCall& call, const Instruction& instruction) {
    if (call.is_wait) return wait(instruction);
    const auto& traits = traits_of(call.op);
    if (!call.host_numbers.empty()) effects_.reads.push_back(resources_.host());
    if (is_view(instruction, resources_)) {
      effects_.is_light = true;
      return;
    }
    use_memory(instruction);
    if (!traits.reads_elements && !traits.is_view && instruction.writes.empty()) {
      for (const auto id : instruction.reads) std::erase(effects_.reads, resources_.storage_of(id));
    }
    effects_.is_light = traits.returns_uninitialized && instruction.writes.empty();
    if (traits.is_random) keep_order(resources_.random());
    if (call.group != nullptr) {
      keep_order(resources_.collectives());
      if (!call.is_blocking) take_off(instruction);
    } else if (!traits.is_of_libtorch) {
      // Whoever wrote it may write its arguments, communicate, or draw numbers.
      for (const auto id : instruction.reads) effects_.writes.push_back(resources_.storage_of(id));
      keep_order(resources_.collectives());
      keep_order(resources_.host());
      keep_order(resources_.random());
    } else if (instruction.results.empty() && instruction.writes.empty()) {
      effects_.is_opaque = true;  // an assertion, for example
    }
  }

  /// Until somebody waits for what it makes or writes, the collective reads its inputs.
  void take_off(const Instruction& collective) {
    std::vector<Resource> inputs;
    for (const auto id : collective.reads) inputs.push_back(resources_.storage_of(id));
    const auto await = [&](ValueId id) {
      auto& flight = in_flight_[resources_.storage_of(id)];
      flight.insert(flight.end(), inputs.begin(), inputs.end());
    };
    for (const auto& each : collective.results) await(each.value);
    for (const auto id : collective.writes) await(id);
  }

  void wait(const Instruction& instruction) {
    effects_.is_opaque = true;
    for (const auto id : instruction.reads) {
      const auto storage = resources_.storage_of(id);
      effects_.writes.push_back(storage);
      const auto flight = in_flight_.find(storage);
      if (flight == in_flight_.end()) continue;
      effects_.reads.insert(effects_.reads.end(), flight->second.begin(), flight->second.end());
      in_flight_.erase(flight);
    }
  }

  const Resources& resources_;
  Effects effects_;
  std::map<Resource, std::vector<Resource>> in_flight_;  // inputs of functional collectives, by their result
};

}  // namespace

void Footprint::add(const Effects& effects) {
  for (const auto each : effects.reads) {
    if (marks_[each] == Mark::none) marks_[each] = Mark::read;
    marked_.push_back(each);
  }
  for (const auto each : effects.writes) {
    marks_[each] = Mark::written;
    marked_.push_back(each);
  }
}

bool Footprint::conflicts_with(const Effects& effects) const {
  return std::any_of(effects.writes.begin(), effects.writes.end(),
                     [&](Resource each) { return marks_[each] != Mark::none; }) ||
         std::any_of(effects.reads.begin(), effects.reads.end(),
                     [&](Resource each) { return marks_[each] == Mark::written; });
}

void Footprint::clear() {
  for (const auto each : marked_) marks_[each] = Mark::none;
  marked_.clear();
}

std::vector<Effects> effects_of(const Program& program, const Resources& resources) {
  EffectAnalysis analysis(resources);
  std::vector<Effects> effects;
  effects.reserve(program.instructions.size());
  for (const auto& each : program.instructions) effects.push_back(analysis.of(each));
  return effects;
}

}  // namespace cohort::recording
