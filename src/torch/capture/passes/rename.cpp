// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/passes/rename.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace cohort::recording {

namespace {

bool uses_renamed(const Collective& collective, const std::vector<ValueId>& names) {
  const auto is_renamed = [&](const Piece& each) { return names[each.value] != each.value; };
  return std::any_of(collective.ins.begin(), collective.ins.end(), is_renamed) ||
         std::any_of(collective.outs.begin(), collective.outs.end(), is_renamed) ||
         std::any_of(collective.members.begin(), collective.members.end(),
                     [&](const Collective& each) { return uses_renamed(each, names); });
}

void rename_in(Collective& collective, const std::vector<ValueId>& names) {
  for (auto& each : collective.ins) each.value = names[each.value];
  for (auto& each : collective.outs) each.value = names[each.value];
  for (auto& each : collective.members) rename_in(each, names);
}

}  // namespace

Renaming::Renaming(const Program& program) : names_(program.values.size()) {
  std::iota(names_.begin(), names_.end(), ValueId{0});
}

void Renaming::apply(Instruction& instruction) const {
  for (auto& each : instruction.tensors) each.value = names_[each.value];
  for (auto& each : instruction.reads) each = names_[each];
  for (auto& each : instruction.writes) each = names_[each];
  auto* const call = instruction.as<CollectiveCall>();
  if (call == nullptr || !uses_renamed(*call->collective, names_)) return;
  auto renamed = *call->collective;
  rename_in(renamed, names_);
  call->collective = std::make_shared<const Collective>(std::move(renamed));
}

void Renaming::finish(Program& program) const {
  std::unordered_map<std::size_t, std::size_t> storages;
  for (ValueId id = 0; id < names_.size(); ++id) {
    const auto from = program.values[id].storage;
    const auto to = program.values[names_[id]].storage;
    if (from != to) storages.emplace(from, to);
  }
  for (auto& each : program.values) {
    if (const auto found = storages.find(each.storage); found != storages.end()) each.storage = found->second;
  }
  const auto rename_left = [&](LeftTensor& tensor) {
    if (tensor.value) tensor.value = names_[*tensor.value];
  };
  for (auto& each : program.outputs) rename_left(each);
  for (auto& each : program.final_gradients) rename_left(each.tensor);
}

}  // namespace cohort::recording
