// SPDX-License-Identifier: BSD-3-Clause
//
// Value numbering over the whole step, which has no branches: two calls are the same if operator, kernel, constants and
// tensors are, and nothing has written the tensors' memory in between. Which of the second calls go is decided from the
// end backwards, when it is known who needs their results: a call goes if nobody does any more, or if the first result
// still exists anyway. So memory never lives longer than one of both results did.
#include <c10/util/hash.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch/capture/compare.h"
#include "torch/capture/operator_traits.h"
#include "torch/capture/passes/effects.h"
#include "torch/capture/passes/passes.h"
#include "torch/capture/passes/rename.h"

namespace cohort::recording {

namespace {

class CommonPass {
 public:
  explicit CommonPass(Program& program)
      : program_(program),
        resources_(program),
        effects_(effects_of(program, resources_)),
        writers_(resources_.size()),
        versions_(resources_.size()),
        renaming_(program),
        equal_to_(program.values.size()),
        is_left_(program.values.size()),
        is_left_storage_(resources_.size()),
        is_used_(resources_.size()) {
    std::iota(equal_to_.begin(), equal_to_.end(), ValueId{0});
    for (const auto& each : effects_) {
      for (const auto resource : each.writes) ++writers_[resource];
    }
    for (const auto& each : program.outputs) leave(each);
    for (const auto& each : program.final_gradients) leave(each.tensor);
    merge_numbers();
  }

  PassReport run() {
    auto& instructions = program_.instructions;
    std::vector<std::optional<std::size_t>> firsts(instructions.size());  // of second calls
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      if (is_candidate(i)) firsts[i] = find_first(i);
      for (const auto resource : effects_[i].writes) ++versions_[resource];
    }
    std::vector<bool> goes(instructions.size());
    std::size_t count = 0;
    for (auto i = instructions.size(); i-- > 0;) {
      goes[i] = firsts[i] && merge(instructions[*firsts[i]], instructions[i]);
      goes[i] ? static_cast<void>(++count) : mark_used(instructions[i]);
    }
    for (auto& each : instructions) renaming_.apply(each);
    renaming_.finish(program_);
    std::size_t next = 0;
    std::erase_if(instructions, [&](const Instruction& /*each*/) { return goes[next++]; });
    return {.name = "merge_common",
            .count = count,
            .text = fmt::format("{} operators that computed what another one had computed", count)};
  }

 private:
  struct Call {
    std::size_t instruction;
    std::vector<std::size_t> versions;  // of the storages that it reads
  };

  /// libtorch makes a new tensor of each number among the operands.
  void merge_numbers() {
    std::map<std::string, ValueId> numbers;  // by dtype and bytes
    for (ValueId id = 0; id < program_.values.size(); ++id) {
      const auto& number = program_.values[id].constant;
      if (!number.defined() || !number.unsafeGetTensorImpl()->is_wrapped_number() || !number.is_cpu()) continue;
      if (writers_[resources_.storage_of(id)] != 0) continue;
      auto bytes = program_.values[id].shown.dtype + ' ';
      bytes.append(static_cast<const char*>(number.data_ptr()), number.nbytes());
      equal_to_[id] = numbers.emplace(std::move(bytes), id).first->second;
      renaming_.rename(id, equal_to_[id]);
    }
  }

  void leave(const LeftTensor& tensor) {
    if (!tensor.value) return;
    const auto storage = resources_.storage_of(*tensor.value);
    is_left_[*tensor.value] = true;
    is_left_storage_[storage] = true;
    is_used_[storage] = true;
  }

  bool is_candidate(std::size_t index) const {
    const auto& instruction = program_.instructions[index];
    const auto* const call = instruction.as<OperatorCall>();
    return call != nullptr && !effects_[index].is_opaque && call->host_numbers.empty() && call->group == nullptr &&
           !instruction.results.empty() && instruction.writes.empty() && !traits_of(call->op).returns_uninitialized;
  }

  std::size_t hash_of(const Instruction& instruction) const {
    auto hash = c10::get_hash(static_cast<const void*>(&instruction.as<OperatorCall>()->op.operator_name()));
    for (const auto& each : instruction.tensors) {
      hash = c10::hash_combine(hash, c10::get_hash(each.position, each.in_list, equal_to_[each.value]));
    }
    return hash;
  }

  std::vector<std::size_t> versions_of(const Instruction& instruction) const {
    std::vector<std::size_t> versions;
    if (is_view(instruction, resources_)) return versions;  // shows whatever is there
    for (const auto id : instruction.reads) versions.push_back(versions_[resources_.storage_of(equal_to_[id])]);
    return versions;
  }

  bool is_same_call(const Instruction& a, const Instruction& b) const {
    const auto is_same_place = [&](const TensorPlace& x, const TensorPlace& y) {
      return x.position == y.position && x.in_list == y.in_list && equal_to_[x.value] == equal_to_[y.value];
    };
    const auto is_same_result = [&](const TensorPlace& x, const TensorPlace& y) {
      return x.position == y.position && x.in_list == y.in_list && stay_equal(x.value, y.value);
    };
    const auto& call = *a.as<OperatorCall>();
    const auto& other = *b.as<OperatorCall>();
    return &call.op.operator_name() == &other.op.operator_name() && call.keys == other.keys &&
           std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), is_same_place) &&
           std::equal(call.arguments.begin(), call.arguments.end(), other.arguments.begin(), other.arguments.end(),
                      is_same_constant) &&
           std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), is_same_result);
  }

  /// Of results of the same call: nobody but their makers writes them.
  bool stay_equal(ValueId first, ValueId second) const {
    const auto of_first = resources_.storage_of(first);
    const auto of_second = resources_.storage_of(second);
    return of_first == of_second || (writers_[of_first] == 1 && writers_[of_second] == 1);
  }

  /// An earlier call that has made what this one makes.
  std::optional<std::size_t> find_first(std::size_t index) {
    const auto& instruction = program_.instructions[index];
    auto versions = versions_of(instruction);
    auto& calls = calls_[hash_of(instruction)];
    const auto same = std::find_if(calls.begin(), calls.end(), [&](const Call& each) {
      return each.versions == versions && is_same_call(program_.instructions[each.instruction], instruction);
    });
    if (same == calls.end()) {
      calls.push_back({.instruction = index, .versions = std::move(versions)});
      return std::nullopt;
    }
    const auto& first = program_.instructions[same->instruction];
    for (std::size_t i = 0; i < first.results.size(); ++i) {
      equal_to_[instruction.results[i].value] = first.results[i].value;
    }
    return same->instruction;
  }

  /// Whether the first result can take the place of the second: what stands behind the second call is decided already.
  bool can_replace(ValueId first, ValueId second) const {
    const auto of_first = resources_.storage_of(first);
    const auto of_second = resources_.storage_of(second);
    if (of_first == of_second) return !is_left_[second];
    if (!is_used_[of_second]) return true;
    // The caller may write what it gets: it must not get one tensor as two.
    return is_used_[of_first] && !(is_left_storage_[of_first] && is_left_storage_[of_second]);
  }

  bool merge(const Instruction& first, const Instruction& second) {
    for (std::size_t i = 0; i < first.results.size(); ++i) {
      if (!can_replace(first.results[i].value, second.results[i].value)) return false;
    }
    for (std::size_t i = 0; i < first.results.size(); ++i) {
      const auto of_first = resources_.storage_of(first.results[i].value);
      const auto of_second = resources_.storage_of(second.results[i].value);
      renaming_.rename(second.results[i].value, first.results[i].value);
      if (is_used_[of_second]) is_used_[of_first] = true;
      if (is_left_storage_[of_second]) is_left_storage_[of_first] = true;
    }
    return true;
  }

  void mark_used(const Instruction& instruction) {
    for (const auto id : instruction.reads) is_used_[resources_.storage_of(id)] = true;
    for (const auto id : instruction.writes) is_used_[resources_.storage_of(id)] = true;
  }

  Program& program_;
  Resources resources_;
  std::vector<Effects> effects_;
  std::vector<std::size_t> writers_;   // of each resource, its maker included
  std::vector<std::size_t> versions_;  // how often each resource has been written so far
  Renaming renaming_;
  std::vector<ValueId> equal_to_;      // the first value with the same elements
  std::vector<bool> is_left_;          // values
  std::vector<bool> is_left_storage_;  // resources
  std::vector<bool> is_used_;          // resources, behind the instruction that is looked at
  std::unordered_map<std::size_t, std::vector<Call>> calls_;
};

}  // namespace

PassReport merge_common(Program& program) {
  return CommonPass(program).run();
}

}  // namespace cohort::recording
