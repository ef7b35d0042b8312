// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/replay.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <cohort/torch/tensor.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "torch/capture/opaque.h"
#include "torch/capture/recorder.h"
#include "torch/dtensor/impl.h"
#include "torch/functional/issuing_group.h"
#include "torch/written.h"

namespace cohort::recording {

Replayer::Replayer(std::shared_ptr<const Program> program) : program_(std::move(program)) {
  plan();
}

void Replayer::plan() {
  const auto& values = program_->values;
  const auto& instructions = program_->instructions;
  values_.resize(values.size());
  flights_.resize(program_->flights);
  released_.resize(instructions.size());

  constexpr auto never = static_cast<std::size_t>(-1);
  std::vector<std::size_t> last_use(values.size(), never);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    for (const auto each : instructions[i].reads) last_use[each] = i;
    for (const auto each : instructions[i].writes) last_use[each] = i;
    for (const auto& each : instructions[i].results) last_use[each.value] = i;
  }
  std::set<ValueId> kept;
  for (const auto& each : program_->outputs) {
    if (each.value) kept.insert(*each.value);
  }
  for (const auto& each : program_->final_gradients) {
    if (each.tensor.value) kept.insert(*each.tensor.value);
  }
  for (ValueId id = 0; id < values.size(); ++id) {
    if (values[id].constant.defined()) {
      values_[id] = values[id].constant;
    } else if (last_use[id] != never && !kept.contains(id)) {
      released_[last_use[id]].push_back(id);
    }
  }
}

std::vector<at::Tensor> Replayer::run(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients,
                                      ReplayClock* clock) {
  const Use use(*this, arguments, gradients);
  use.perform(0, program_->instructions.size(), clock);
  return use.leave();
}

Replayer::Use::Use(Replayer& replayer, std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients)
    : replayer_(replayer) {
  const auto& program = *replayer_.program_;
  auto& values = replayer_.values_;
  for (std::size_t i = 0; i < arguments.size(); ++i) values[program.arguments[i]] = plain_part(arguments[i]);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (program.gradients[i]) values[*program.gradients[i]] = plain_part(gradients[i]);
  }
}

Replayer::Use::~Use() {
  // If a collective has failed, others may be in flight still, on memory that is let go next: their handles wait.
  for (auto& each : replayer_.flights_) each = Work();
  for (ValueId id = 0; id < replayer_.values_.size(); ++id) {
    if (!replayer_.program_->values[id].constant.defined()) replayer_.values_[id].reset();
  }
}

void Replayer::Use::perform(std::size_t first, std::size_t last, ReplayClock* clock) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (auto i = first; i < last; ++i) {
    replayer_.perform(replayer_.program_->instructions[i]);
    for (const auto id : replayer_.released_[i]) replayer_.values_[id].reset();
    if (clock != nullptr) clock->end_instruction();
  }
}

std::vector<at::Tensor>& Replayer::Use::values() const noexcept {
  return replayer_.values_;
}

std::vector<at::Tensor> Replayer::Use::leave() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> results;
  for (const auto& each : replayer_.program_->outputs) {
    auto result = replayer_.left(each);
    // What existed before the step is the caller's or the recording's own object.
    const bool is_made =
        !each.value || replayer_.program_->values[*each.value].shown.origin == GraphValue::Origin::result;
    results.push_back(is_made || each.layout != nullptr ? std::move(result) : alias_of(result));
  }
  replayer_.left_gradients_.clear();
  for (const auto& each : replayer_.program_->final_gradients) {
    replayer_.left_gradients_.push_back(replayer_.left(each.tensor));
  }
  return results;
}

std::vector<at::Tensor> Replayer::take_left_gradients() {
  return std::exchange(left_gradients_, {});
}

at::Tensor Replayer::left(const LeftTensor& tensor) const {
  if (!tensor.value) return {};
  const auto& value = values_[*tensor.value];
  return tensor.layout == nullptr ? value : dtensor::wrap(value, tensor.layout, tensor.sizes, tensor.strides);
}

void Replayer::perform(const Instruction& instruction) {
  std::visit([&](const auto& action) { perform(action, instruction); }, instruction.action);
}

void Replayer::perform(const OperatorCall& call, const Instruction& instruction) {
  std::optional<functional::IssuingGroup> scope;
  if (call.group != nullptr) scope.emplace(call.group, functional::IssuingOptions{.is_blocking = call.is_blocking});
  stack_.assign(call.arguments.begin(), call.arguments.end());
  for (const auto& each : instruction.tensors) {
    if (each.in_list < 0) {
      stack_[each.position] = values_[each.value];
      continue;
    }
    // A list of its own, with the tensors of this replay.
    if (stack_[each.position].is(call.arguments[each.position])) {
      stack_[each.position] = call.arguments[each.position].toList().copy();
    }
    stack_[each.position].toList().set(static_cast<std::size_t>(each.in_list), values_[each.value]);
  }
  for (const auto& each : call.host_numbers) {
    const auto number = each.function();
    if (!each.is_tensor) {
      stack_[each.position] = number;
      continue;
    }
    auto tensor = c10::scalar_to_tensor(number);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    stack_[each.position] = std::move(tensor);
  }
  call.op.redispatchBoxed(call.keys, &stack_);
  for (const auto& each : instruction.results) {
    auto& result = stack_[each.position];
    values_[each.value] = each.in_list < 0 ? std::move(result).toTensor()
                                           : result.toListRef()[static_cast<std::size_t>(each.in_list)].toTensor();
  }
  stack_.clear();
}

void Replayer::perform(const CollectiveWait& wait, const Instruction& /*instruction*/) {
  std::exchange(flights_[wait.flight], {}).wait();
}

void Replayer::perform(const HostCall& call, const Instruction& /*instruction*/) {
  call.function();
}

void Replayer::perform(const OpaqueCall& call, const Instruction& instruction) {
  std::vector<at::Tensor> inputs(call.inputs);
  for (const auto& each : instruction.tensors) inputs[each.position] = values_[each.value];
  auto results = call_again(instruction, program_->values, inputs);
  for (const auto& each : instruction.results) values_[each.value] = std::move(results[each.position]);
}

namespace {

/// The operation with the memory that its values have now.
Operation with_memory(const Collective& collective, const std::vector<at::Tensor>& values) {
  const auto bytes_of = [&](const Piece& piece) {
    return Bytes(static_cast<std::byte*>(values[piece.value].data_ptr()) + piece.offset, piece.bytes);
  };
  auto operation = collective.operation;
  for (const auto& each : collective.ins) operation.ins.push_back(bytes_of(each));
  for (const auto& each : collective.outs) operation.outs.push_back(bytes_of(each));
  for (const auto& each : collective.members) operation.members.push_back(with_memory(each, values));
  return operation;
}

}  // namespace

void Replayer::perform(const CollectiveCall& call, const Instruction& instruction) {
  auto options = call.collective->options;
  const auto& first = instruction.writes.empty() ? instruction.reads : instruction.writes;
  if (!first.empty()) options.stream = current_stream(values_[first.front()]);
  auto work = issue_again(*call.group, with_memory(*call.collective, values_), options);
  if (call.flight) flights_[*call.flight] = std::move(work);
}

std::vector<bool> replaced_gradients(const Program& program) {
  std::set<std::size_t> used;  // storages
  const auto use = [&](ValueId id) { used.insert(program.values[id].storage); };
  for (const auto& each : program.instructions) {
    std::for_each(each.reads.begin(), each.reads.end(), use);
    std::for_each(each.writes.begin(), each.writes.end(), use);
  }
  for (const auto& each : program.outputs) {
    if (each.value) use(*each.value);
  }
  for (const auto& each : program.final_gradients) {
    if (each.tensor.value) use(*each.tensor.value);
  }
  std::vector<bool> replaced(program.gradients.size());
  for (const auto& each : program.final_gradients) {
    const auto& before = program.gradients[each.parameter];
    replaced[each.parameter] = before && !used.contains(program.values[*before].storage);
  }
  return replaced;
}

}  // namespace cohort::recording
