// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/batch_updates.h"

#include <ATen/core/List.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace cohort::recording {

namespace {

struct Batchable {
  std::string_view name;
  std::string_view overload;
  const char* list_name;
  const char* list_overload;
};

// The bits of these were seen to be equal on a GPU. With div, add_ of a number and addcdiv_, which end Adam's update,
// those of its parameters were not, on an H200 with libtorch 2.11: on lists one of them rounds otherwise.
constexpr std::array batchables{
    Batchable{"aten::mul_", "Scalar", "aten::_foreach_mul_", "Scalar"},
    Batchable{"aten::add_", "Tensor", "aten::_foreach_add_", "List"},
    Batchable{"aten::addcmul_", "", "aten::_foreach_addcmul_", "Scalar"},
    Batchable{"aten::sqrt", "", "aten::_foreach_sqrt", ""},
    Batchable{"aten::zero_", "", "aten::_foreach_zero_", ""},
};

const Batchable* batchable(const Instruction& instruction) {
  const auto* const call = instruction.as<OperatorCall>();
  if (call == nullptr) return nullptr;
  const auto& name = call->op.operator_name();
  const auto found = std::find_if(batchables.begin(), batchables.end(), [&](const Batchable& each) {
    return each.name == name.name && each.overload == name.overload_name;
  });
  return found == batchables.end() ? nullptr : &*found;
}

/// A larger tensor keeps the GPU busy for longer than a launch takes, and stays in its cache from one update to the
/// next if they follow each other.
constexpr std::int64_t most_elements = 1 << 18;

std::int64_t elements_of(const GraphValue& value) {
  return std::accumulate(value.sizes.begin(), value.sizes.end(), std::int64_t{1}, std::multiplies<>());
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
  const auto& call = *instruction.as<OperatorCall>();
  const auto& first = program.values[instruction.tensors.front().value].shown;
  if (!is_real(first.dtype) || elements_of(first) > most_elements) return std::nullopt;
  auto key = fmt::format("{}.{} {} {}", known->name, known->overload, first.dtype, first.device);
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const auto is_here = [i](const auto& place) { return place.position == i; };
    const auto tensor = std::find_if(instruction.tensors.begin(), instruction.tensors.end(), is_here);
    if (tensor != instruction.tensors.end()) {
      const auto& shown = program.values[tensor->value].shown;
      if (tensor->in_list >= 0 || shown.dtype != first.dtype || shown.device != first.device) return std::nullopt;
      continue;
    }
    const auto& numbers = call.host_numbers;
    const auto number = std::find_if(numbers.begin(), numbers.end(), is_here);
    if (number != numbers.end()) {
      if (number->is_tensor) return std::nullopt;
      key += fmt::format(" #{}", each.numbers[static_cast<std::size_t>(number - numbers.begin())]);
      continue;
    }
    const auto text = exact_text(call.arguments[i]);
    if (!text) return std::nullopt;
    key += " " + *text;
  }
  return key;
}

Instruction on_lists(const std::vector<NumberedInstruction>& members) {
  const auto& first = *members.front().instruction;
  if (members.size() == 1) return first;
  const auto& known = *batchable(first);
  auto call = *first.as<OperatorCall>();
  call.op = c10::Dispatcher::singleton().findSchemaOrThrow(known.list_name, known.list_overload);
  Instruction whole;
  for (const auto& place : first.tensors) {
    c10::List<at::Tensor> list;
    list.resize(members.size());
    call.arguments[place.position] = std::move(list);
  }
  whole.action = std::move(call);
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

/// The new order. A batch stays open, and comes after all instructions that are none, until one of these depends on it.
class UpdateOrder {
 public:
  explicit UpdateOrder(const Program& program) : values_(program.values) {}

  void add(const NumberedInstruction& each, const std::optional<std::string>& key) {
    const auto last = last_dependence(*each.instruction);
    if (!key) {
      close(last + 1);
      order_.push_back(*each.instruction);
      return;
    }
    const auto [open, is_new] = open_.try_emplace(*key, batches_.size());
    if (!is_new && static_cast<std::int64_t>(open->second) <= last) open->second = batches_.size();
    if (open->second == batches_.size()) batches_.emplace_back();
    batches_[open->second].push_back(each);
    mark(*each.instruction, static_cast<std::int64_t>(open->second));
  }

  std::vector<Instruction> finish() {
    close(static_cast<std::int64_t>(batches_.size()));
    return std::move(order_);
  }

 private:
  struct Touched {
    std::int64_t read = -1;  // the last batch that does
    std::int64_t written = -1;
  };

  /// Puts the batches before this one into the order.
  void close(std::int64_t end) {
    for (; closed_ < end; ++closed_) order_.push_back(on_lists(batches_[static_cast<std::size_t>(closed_)]));
    std::erase_if(open_, [this](const auto& each) { return static_cast<std::int64_t>(each.second) < closed_; });
  }

  /// The last batch that has to come before the instruction; -1 if there is none.
  std::int64_t last_dependence(const Instruction& each) const {
    std::int64_t last = -1;
    const auto look = [&](ValueId id, bool is_written) {
      const auto touched = storages_.find(values_[id].storage);
      if (touched == storages_.end()) return;
      last = std::max({last, touched->second.written, is_written ? touched->second.read : -1});
    };
    for (const auto id : each.reads) look(id, false);
    for (const auto id : each.writes) look(id, true);
    return last;
  }

  void mark(const Instruction& each, std::int64_t batch) {
    const auto raise = [batch](std::int64_t& last) { last = std::max(last, batch); };
    for (const auto id : each.reads) raise(storages_[values_[id].storage].read);
    for (const auto id : each.writes) raise(storages_[values_[id].storage].written);
    for (const auto& result : each.results) raise(storages_[values_[result.value].storage].written);
  }

  const std::vector<Value>& values_;
  std::vector<Instruction> order_;
  std::vector<std::vector<NumberedInstruction>> batches_;
  std::int64_t closed_ = 0;                            // of them
  std::unordered_map<std::string, std::size_t> open_;  // the last one of each key
  std::unordered_map<std::size_t, Touched> storages_;
};

}  // namespace

std::vector<Instruction> batch_updates(const Program& program, std::span<const NumberedInstruction> instructions) {
  UpdateOrder order(program);
  for (const auto& each : instructions) order.add(each, batch_key(program, each));
  return order.finish();
}

}  // namespace cohort::recording
