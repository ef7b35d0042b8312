// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/batch_updates.h"

#include <ATen/core/List.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "torch/capture/operator_traits.h"

namespace cohort::recording {

namespace {

struct Batchable {
  std::string_view name;
  std::string_view overload;
  const char* list_name;
  const char* list_overload;
  std::size_t arguments;  ///< of the operator on lists; what the other one has behind them must be 1
};

// div is not among them: a tensor is divided by a number as it is multiplied with the inverse, a list is divided.
constexpr std::array batchables{
    Batchable{"aten::mul_", "Scalar", "aten::_foreach_mul_", "Scalar", 2},
    Batchable{"aten::add_", "Tensor", "aten::_foreach_add_", "List", 3},
    Batchable{"aten::add_", "Scalar", "aten::_foreach_add_", "Scalar", 2},
    Batchable{"aten::addcmul_", "", "aten::_foreach_addcmul_", "Scalar", 4},
    Batchable{"aten::addcdiv_", "", "aten::_foreach_addcdiv_", "Scalar", 4},
    Batchable{"aten::sqrt", "", "aten::_foreach_sqrt", "", 1},
    Batchable{"aten::zero_", "", "aten::_foreach_zero_", "", 1},
};

const Batchable* batchable(const Instruction& instruction) {
  if (!instruction.op) return nullptr;
  const auto& name = instruction.op->operator_name();
  const auto found = std::find_if(batchables.begin(), batchables.end(), [&](const Batchable& each) {
    return each.name == name.name && each.overload == name.overload_name;
  });
  return found == batchables.end() ? nullptr : &*found;
}

bool is_real(std::string_view dtype) {
  return dtype == "f32" || dtype == "f64" || dtype == "f16" || dtype == "bf16";
}

/// All digits, and the sign of zero.
std::optional<std::string> exact_text(const c10::IValue& value) {
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return fmt::format("{:x}", std::bit_cast<std::uint64_t>(value.toDouble()));
  return std::nullopt;
}

/// Equal for instructions that one operator on lists can do; nullopt if there is none for this one.
std::optional<std::string> batch_key(const Program& program, const NumberedInstruction& each) {
  const auto& instruction = *each.instruction;
  const auto* const known = batchable(instruction);
  if (known == nullptr || instruction.tensors.empty()) return std::nullopt;
  const auto& first = program.values[instruction.tensors.front().value].shown;
  if (!is_real(first.dtype)) return std::nullopt;
  auto key = fmt::format("{}.{} {} {}", known->name, known->overload, first.dtype, first.device);
  for (std::size_t i = 0; i < instruction.arguments.size(); ++i) {
    const auto is_here = [i](const auto& place) { return place.position == i; };
    const auto tensor = std::find_if(instruction.tensors.begin(), instruction.tensors.end(), is_here);
    if (tensor != instruction.tensors.end()) {
      const auto& shown = program.values[tensor->value].shown;
      if (tensor->in_list >= 0 || shown.dtype != first.dtype || shown.device != first.device) return std::nullopt;
      continue;
    }
    const auto& numbers = instruction.host_numbers;
    const auto number = std::find_if(numbers.begin(), numbers.end(), is_here);
    if (number != numbers.end()) {
      if (number->is_tensor || i >= known->arguments) return std::nullopt;
      key += fmt::format(" #{}", each.numbers[static_cast<std::size_t>(number - numbers.begin())]);
      continue;
    }
    const auto text = exact_text(instruction.arguments[i]);
    if (!text || (i >= known->arguments && instruction.arguments[i].toScalar().toDouble() != 1)) return std::nullopt;
    key += " " + *text;
  }
  return key;
}

Instruction on_lists(const std::vector<NumberedInstruction>& members) {
  const auto& first = *members.front().instruction;
  if (members.size() == 1) return first;
  const auto& known = *batchable(first);
  Instruction whole{
      .op = c10::Dispatcher::singleton().findSchemaOrThrow(known.list_name, known.list_overload),
      .keys = first.keys,
      .arguments = {first.arguments.begin(), first.arguments.begin() + static_cast<std::ptrdiff_t>(known.arguments)},
      .host_numbers = first.host_numbers};
  for (const auto& place : first.tensors) {
    c10::List<at::Tensor> list;
    list.resize(members.size());
    whole.arguments[place.position] = std::move(list);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto& each = *members[i].instruction;
    const auto add = [&](std::vector<TensorPlace>& places, TensorPlace place) {
      place.in_list = static_cast<int>(i);
      places.push_back(place);
    };
    for (const auto& place : each.tensors) add(whole.tensors, place);
    for (const auto& place : each.results) add(whole.results, place);
    whole.reads.insert(whole.reads.end(), each.reads.begin(), each.reads.end());
    whole.writes.insert(whole.writes.end(), each.writes.begin(), each.writes.end());
  }
  return whole;
}

/// Gives each instruction a slot of the new order: a new one at the end, or that of a batch which comes after everything
/// that the instruction depends on.
class Slots {
 public:
  explicit Slots(const Program& program) : values_(program.values) {}

  void add(const NumberedInstruction& each, const std::optional<std::string>& key) {
    std::size_t slot = slots_.size();
    if (key) {
      const auto [batch, is_new] = batches_.try_emplace(*key, slot);
      if (!is_new && static_cast<std::int64_t>(batch->second) > last_dependence(*each.instruction)) {
        slot = batch->second;
      } else {
        batch->second = slot;
      }
    }
    if (slot == slots_.size()) slots_.emplace_back();
    slots_[slot].push_back(each);
    mark(*each.instruction, slot);
  }

  const std::vector<std::vector<NumberedInstruction>>& slots() const noexcept { return slots_; }

 private:
  struct Touched {
    std::int64_t read = -1;
    std::int64_t written = -1;
  };

  /// The last slot that has to come before the instruction.
  std::int64_t last_dependence(const Instruction& each) {
    std::int64_t last = -1;
    const auto look = [&](ValueId id, bool is_written) {
      const auto& touched = storages_[values_[id].storage];
      last = std::max({last, touched.written, is_written ? touched.read : -1});
      if (const auto made = made_.find(id); made != made_.end()) last = std::max(last, made->second);
    };
    for (const auto id : each.reads) look(id, false);
    for (const auto id : each.writes) look(id, true);
    return last;
  }

  void mark(const Instruction& each, std::size_t slot) {
    const auto here = static_cast<std::int64_t>(slot);
    const auto raise = [here](std::int64_t& last) { last = std::max(last, here); };
    for (const auto id : each.reads) raise(storages_[values_[id].storage].read);
    for (const auto id : each.writes) raise(storages_[values_[id].storage].written);
    for (const auto& result : each.results) {
      made_[result.value] = here;
      raise(storages_[values_[result.value].storage].read);
    }
  }

  const std::vector<Value>& values_;
  std::vector<std::vector<NumberedInstruction>> slots_;
  std::unordered_map<std::string, std::size_t> batches_;  // the last one of each key
  std::unordered_map<std::size_t, Touched> storages_;
  std::unordered_map<ValueId, std::int64_t> made_;
};

}  // namespace

std::vector<Instruction> batch_updates(const Program& program, std::span<const NumberedInstruction> instructions) {
  Slots slots(program);
  for (const auto& each : instructions) slots.add(each, batch_key(program, each));
  std::vector<Instruction> batched;
  for (const auto& each : slots.slots()) batched.push_back(on_lists(each));
  return batched;
}

}  // namespace cohort::recording
