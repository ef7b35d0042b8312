// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/graph_replay.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_strided.h>
#include <cohort/debug_level.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/log.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "torch/capture/batch_updates.h"
#include "torch/capture/instruction_name.h"
#include "torch/capture/recorder.h"

namespace cohort::recording {

namespace {

/// A graph that is captured again and again costs more than it saves.
constexpr int most_captures = 6;

bool shows_an_element_twice(const at::Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) return true;
  }
  return false;
}

/// Where arguments and gradients, which come with each call, must not overlap with other tensors of the step.
class Memory {
 public:
  explicit Memory(const Program& program) : program_(program) {
    for (const auto& each : program.values) {
      if (each.shown.origin != GraphValue::Origin::result) ++owners_[each.storage];
    }
    for (const auto& each : program.instructions) {
      for (const auto id : each.reads) used_.insert(program.values[id].storage);
      for (const auto id : each.writes) {
        used_.insert(program.values[id].storage);
        written_.insert(program.values[id].storage);
      }
    }
    for (const auto& each : program.outputs) {
      if (each.value) used_.insert(program.values[*each.value].storage);
    }
    for (const auto& each : program.final_gradients) {
      if (each.tensor.value) used_.insert(program.values[*each.tensor.value].storage);
    }
  }
  bool is_used(ValueId id) const { return used_.contains(storage(id)); }
  bool is_written(ValueId id) const { return written_.contains(storage(id)); }
  bool is_shared(ValueId id) const { return owners_.at(storage(id)) > 1; }

 private:
  std::size_t storage(ValueId id) const { return program_.values[id].storage; }
  const Program& program_;
  std::map<std::size_t, int> owners_;
  std::unordered_set<std::size_t> used_;
  std::unordered_set<std::size_t> written_;
};

std::string short_text(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

bool GraphReplayer::concerns(const Program& program) {
  return std::any_of(program.values.begin(), program.values.end(), is_on_gpu);
}

GraphReplayer::GraphReplayer(std::shared_ptr<const Program> program)
    : program_(std::move(program)), direct_(program_), host_(*program_) {
  if (!has_device_graphs()) {
    reason_ = "this library was built with a libtorch that has no CUDA";
  } else if (debug_level() == DebugLevel::detail) {
    reason_ = "the debug level is detail, at which ranks compare every collective when it is issued";
  }
  find_obstacles();
  find_used_values();
}

void GraphReplayer::find_obstacles() {
  std::string device;
  for (const auto& each : program_->instructions) {
    obstacles_.push_back(obstacle(*program_, each));
    // It may draw random numbers, communicate and see what the host has done before it.
    if (const auto* const call = each.as<OpaqueCall>()) {
      give_up(fmt::format("it calls the opaque function \"{}\"", call->name));
    }
    if (const auto* const call = each.as<OperatorCall>()) {
      for (const auto& argument : call->arguments) {
        if (argument.isGenerator()) generators_.push_back(argument.toGenerator());
      }
    }
  }
  for (const auto& each : program_->values) {
    if (!is_on_gpu(each)) continue;
    if (!device.empty() && device != each.shown.device) {
      give_up(fmt::format("it uses {} and {}, and a graph is on one device", device, each.shown.device));
    }
    device = each.shown.device;
  }
  if (!device.empty()) device_ = c10::Device(device);
}

void GraphReplayer::find_used_values() {
  const Memory memory(*program_);
  for (std::size_t i = 0; i < program_->arguments.size(); ++i) {
    const auto id = program_->arguments[i];
    const bool is_copied = memory.is_used(id) && is_on_gpu(program_->values[id]);
    is_copied_.push_back(is_copied);
    is_copied_back_.push_back(is_copied && memory.is_written(id));
    const auto uses = std::count(program_->arguments.begin(), program_->arguments.end(), id);
    if (is_copied && memory.is_written(id) && (uses > 1 || memory.is_shared(id))) {
      give_up(fmt::format("it writes argument {}, which shares memory with another tensor of the step", i));
    }
  }
  for (const auto& each : program_->gradients) is_gradient_used_.push_back(each && memory.is_used(*each));
}

void GraphReplayer::give_up(std::string reason) {
  if (!reason_.empty()) return;
  reason_ = std::move(reason);
  captured_.reset();
  log(LogLevel::info, fmt::format("capture: the step is not launched as a CUDA graph: {}", reason_));
}

std::vector<at::Tensor> GraphReplayer::run(std::span<const at::Tensor> arguments,
                                           std::span<const at::Tensor> gradients) {
  if (!reason_.empty()) {
    order_.reset();
    return direct_.run(arguments, gradients);
  }
  throw_errors_of_last_launch();
  host_.run();
  note_changing_numbers();
  const bool fits = captured_ && numbers_fit() && captured_->gradients == addresses(gradients);
  if (fits) return launch(arguments);

  captured_.reset();
  note_equal_numbers();
  order_ = ordered();
  if (std::exchange(is_warm_, true)) {
    try {
      capture(arguments, gradients);
      return launch(arguments);
    } catch (const c10::Error& error) {
      if (captured_) throw;
      give_up(fmt::format("it cannot be captured: {}", error.what_without_backtrace()));
    } catch (const NotSupportedError& error) {
      if (captured_) throw;
      give_up(fmt::format("it cannot be captured: {}", short_text(error)));
    }
    order_ = ordered();
  }
  // What the host does has been done, so this is not direct_'s.
  const Replayer::Use use(order_->replayer, arguments, gradients);
  use.perform(0, order_->all);
  return use.leave();
}

/// A number may be part of the graph until it has changed once.
void GraphReplayer::note_changing_numbers() {
  is_changing_.resize(host_.size());
  const bool is_first = numbers_before_.size() != host_.size();
  numbers_before_.resize(host_.size());
  for (std::size_t i = 0; i < host_.size(); ++i) {
    if (!is_first && !are_equal_numbers(numbers_before_[i], host_.number(i))) is_changing_[i] = true;
    numbers_before_[i] = host_.number(i);
  }
}

/// Numbers that were equal in each replay until now are taken for the same number.
void GraphReplayer::note_equal_numbers() {
  const bool is_first = equal_to_.size() != host_.size();
  equal_to_.resize(host_.size());
  std::map<std::tuple<std::size_t, int, std::uint64_t>, std::size_t> first;
  for (std::size_t i = 0; i < host_.size(); ++i) {
    const auto& number = host_.number(i);
    if (number.isComplex()) {
      equal_to_[i] = i;
      continue;
    }
    const auto before = is_first ? 0 : equal_to_[i];
    const std::tuple key(before, static_cast<int>(number.type()), std::bit_cast<std::uint64_t>(number.toDouble()));
    equal_to_[i] = first.emplace(key, i).first->second;
  }
}

bool GraphReplayer::numbers_fit() const {
  const auto& in_graph = order_->numbers;
  if (std::any_of(in_graph.begin(), in_graph.end(), [&](std::size_t i) { return is_changing_[i]; })) return false;
  for (std::size_t i = 0; i < equal_to_.size(); ++i) {
    if (equal_to_[i] != i && !are_equal_numbers(host_.number(i), host_.number(equal_to_[i]))) return false;
  }
  return true;
}

std::unique_ptr<GraphReplayer::Order> GraphReplayer::ordered() const {
  const auto& instructions = program_->instructions;
  std::vector<bool> is_direct(instructions.size());
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    is_direct[i] = !obstacles_[i].empty() || !reason_.empty();
    for (std::size_t k = 0; k < host_.numbers_of(i); ++k) {
      if (is_changing_[host_.first_number(i) + k]) is_direct[i] = true;
    }
  }
  const auto parts = partition(*program_, std::move(is_direct));
  Program whole = *program_;
  whole.instructions = batched(parts.graph);
  const auto captured = whole.instructions.size();
  auto tail = batched(parts.tail);
  std::move(tail.begin(), tail.end(), std::back_inserter(whole.instructions));
  const auto all = whole.instructions.size();
  auto order = std::make_unique<Order>(std::move(whole));
  order->captured = captured;
  order->all = all;
  for (const auto i : parts.graph) {
    const auto& each = instructions[i];
    for (std::size_t k = 0; k < host_.numbers_of(i); ++k) order->numbers.push_back(host_.first_number(i) + k);
    for (const auto& result : each.results) order->storages.insert(program_->values[result.value].storage);
    auto group = group_of(each);
    if (group && std::find(order->groups.begin(), order->groups.end(), group) == order->groups.end()) {
      order->groups.push_back(std::move(group));
    }
  }
  // Views have the storage of what they show. That of an argument is the graph's own copy of it.
  for (const auto& each : program_->values) {
    const auto origin = each.shown.origin;
    if (origin == GraphValue::Origin::constant || origin == GraphValue::Origin::gradient) {
      order->storages.erase(each.storage);
    }
  }
  return order;
}

std::vector<Instruction> GraphReplayer::batched(std::span<const std::size_t> instructions) const {
  std::vector<Instruction> with_numbers;
  with_numbers.reserve(instructions.size());
  std::vector<NumberedInstruction> numbered;
  for (const auto i : instructions) {
    auto& each = with_numbers.emplace_back(program_->instructions[i]);
    NumberedInstruction& last = numbered.emplace_back(NumberedInstruction{.instruction = &each});
    for (std::size_t k = 0; k < host_.numbers_of(i); ++k) {
      const auto index = host_.first_number(i) + k;
      each.as<OperatorCall>()->host_numbers[k].function = host_.source(index);
      last.numbers.push_back(equal_to_[index]);
    }
  }
  return batch_updates(*program_, numbered);
}

std::vector<const void*> GraphReplayer::addresses(std::span<const at::Tensor> gradients) const {
  std::vector<const void*> addresses;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (is_gradient_used_[i]) addresses.push_back(plain_part(gradients[i]).data_ptr());
  }
  return addresses;
}

void GraphReplayer::capture(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (order_->captured < order_->all - order_->captured) {
    const auto first =
        std::find_if(obstacles_.begin(), obstacles_.end(), [](const std::string& each) { return !each.empty(); });
    throw NotSupportedError(first != obstacles_.end() ? "most of it depends on what a graph cannot contain: " + *first
                                                      : "most of it depends on numbers of the host that change");
  }
  if (++captures_ > most_captures) {
    throw NotSupportedError("gradients or numbers of the host differ in other ways at each call");
  }
  Captured captured;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto argument = plain_part(arguments[i]);
    if (is_copied_[i] && shows_an_element_twice(argument)) {
      throw NotSupportedError(fmt::format("argument {} is expanded: its elements share memory", i));
    }
    captured.arguments.push_back(
        is_copied_[i] ? at::empty_strided(argument.sizes(), argument.strides(), argument.options()) : argument);
  }
  captured.gradients = addresses(gradients);
  captured.graph = capture_device_graph(device_, generators_, [&] {
    const Replayer::Use use(order_->replayer, captured.arguments, gradients);
    use.perform(0, order_->captured);
    captured.values = use.values();
  });
  for (const auto& each : program_->final_gradients) {
    const auto& id = each.tensor.value;
    captured.left_gradients.push_back(id && captured.values[*id].defined() ? at::alias(captured.values[*id])
                                                                           : at::Tensor());
  }
  // What the caller's arguments are is no business of the graph.
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_copied_[i]) captured.arguments[i].reset();
  }
  captured.empty = at::empty_strided({0}, {1}, at::TensorOptions().device(device_));
  captured_ = std::move(captured);
}

std::vector<at::Tensor> GraphReplayer::launch(std::span<const at::Tensor> arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto& captured = *captured_;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_copied_[i]) captured.arguments[i].copy_(plain_part(arguments[i]), /*non_blocking=*/true);
  }
  captured.graph->launch();
  watch_groups();
  const Replayer::Use use(order_->replayer, {}, {});
  auto& values = use.values();
  values = captured.values;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_copied_[i]) values[program_->arguments[i]] = plain_part(arguments[i]);
  }
  use.perform(order_->captured, order_->all);

  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto argument = plain_part(arguments[i]);
    if (is_copied_back_[i]) argument.copy_(captured.arguments[i], /*non_blocking=*/true);
    values[program_->arguments[i]] = argument;
  }
  // The next launch writes the graph's memory: what the step returns is copied out of it.
  for (const auto& each : program_->outputs) {
    if (!each.value || program_->values[*each.value].shown.origin == GraphValue::Origin::argument) continue;
    if (order_->storages.contains(program_->values[*each.value].storage)) {
      values[*each.value] = values[*each.value].clone();
    }
  }
  for (std::size_t i = 0; i < captured.left_gradients.size(); ++i) {
    auto& left = captured.left_gradients[i];
    if (!left.defined()) continue;
    const auto id = *program_->final_gradients[i].tensor.value;
    // The caller may have given its object other memory.
    if (!left.is_alias_of(captured.values[id])) left = at::alias(captured.values[id]);
    values[id] = left;
  }
  return use.leave();
}

/// What a graph contains is not watched when it is captured. Something behind the launch, on the same stream, is: if it
/// does not end in time, or the group is aborted, its communicator ends what it has on the device.
void GraphReplayer::watch_groups() {
  watched_.clear();
  for (const auto& each : order_->groups) {
    watched_.push_back(issue_again(*each, {.type = OpType::coalesced},
                                   {.device = DeviceType::cuda, .stream = current_stream(captured_->empty)}));
  }
}

void GraphReplayer::throw_errors_of_last_launch() {
  for (const auto& each : watched_) {
    if (const auto error = each.exception()) std::rethrow_exception(error);
  }
}

std::string GraphReplayer::explain() const {
  if (!reason_.empty()) return fmt::format("Replayed by direct calls, and not as a CUDA graph: {}.", reason_);
  if (!captured_) return "The second replay captures it as a CUDA graph.";
  auto text = fmt::format("Replayed as a CUDA graph of {} calls", order_->captured);
  if (order_->captured == order_->all) return text + ".";
  const auto first =
      std::find_if(obstacles_.begin(), obstacles_.end(), [](const std::string& each) { return !each.empty(); });
  return text + fmt::format(", and {} calls after it: {}.", order_->all - order_->captured,
                            first != obstacles_.end() ? *first : "they use numbers of the host that change");
}

std::vector<at::Tensor> GraphReplayer::take_left_gradients() {
  return order_ != nullptr ? order_->replayer.take_left_gradients() : direct_.take_left_gradients();
}

}  // namespace cohort::recording
