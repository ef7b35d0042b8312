// SPDX-License-Identifier: BSD-3-Clause
//
// From the end of the step backwards: an instruction stays if somebody outside sees what it does, or if one that stays
// uses what it makes or writes.
#include <fmt/format.h>

#include <algorithm>

#include "torch/capture/passes/effects.h"
#include "torch/capture/passes/passes.h"

namespace cohort::recording {

namespace {

class Needs {
 public:
  explicit Needs(const Program& program) : program_(program), values_(program.values.size()) {
    std::size_t storages = 0;
    for (const auto& each : program.values) storages = std::max(storages, each.storage + 1);
    storages_.resize(storages);
    for (const auto& each : program.values) {
      if (each.shown.origin != GraphValue::Origin::result) storages_[each.storage] = true;
    }
    for (const auto& each : program.outputs) {
      if (each.value) add(*each.value);
    }
    for (const auto& each : program.final_gradients) {
      if (each.tensor.value) add(*each.tensor.value);
    }
  }

  bool include(const Instruction& instruction) const {
    return std::any_of(instruction.results.begin(), instruction.results.end(),
                       [&](const TensorPlace& each) { return values_[each.value]; }) ||
           include_any(instruction.writes);
  }

  /// Whether memory that one of them shows is used.
  bool include_any(const std::vector<ValueId>& ids) const {
    return std::any_of(ids.begin(), ids.end(), [&](ValueId id) { return storages_[program_.values[id].storage]; });
  }
  /// What the instruction uses must be there, with the elements that it had.
  void add(const Instruction& instruction) {
    for (const auto id : instruction.reads) add(id);
    for (const auto id : instruction.writes) add(id);
  }

 private:
  void add(ValueId id) {
    values_[id] = true;
    storages_[program_.values[id].storage] = true;
  }

  const Program& program_;
  std::vector<bool> values_;
  std::vector<bool> storages_;  // of which somebody reads a part
};

}  // namespace

PassReport remove_dead(Program& program) {
  const auto effects = effects_of(program, Resources(program));
  auto& instructions = program.instructions;
  Needs needs(program);
  std::vector<bool> stays(instructions.size());
  std::size_t last_region = 0;  // of an instruction that stays
  for (auto i = instructions.size(); i-- > 0;) {
    const auto& each = instructions[i];
    // A call on a distributed tensor begins in front of what it consists of; from_local and to_local consist of
    // nothing.
    stays[i] = each.as<DistributedCall>() != nullptr ? each.region == last_region || needs.include_any(each.reads)
                                                     : effects[i].is_opaque || needs.include(each);
    if (stays[i]) last_region = each.region;
    if (stays[i]) needs.add(instructions[i]);
  }
  std::size_t next = 0;
  const auto removed = std::erase_if(instructions, [&](const Instruction& /*each*/) { return !stays[next++]; });
  return {
      .name = "remove_dead", .count = removed, .text = fmt::format("{} operators whose results nothing used", removed)};
}

}  // namespace cohort::recording
