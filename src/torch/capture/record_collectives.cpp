// SPDX-License-Identifier: BSD-3-Clause
//
// Operations on groups, as an IssueObserver sees them.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "torch/capture/recorder.h"
#include "torch/capture/waits.h"
#include "torch/dispatch/fallback.h"

namespace cohort::recording {

namespace {

at::Device torch_device(const Device& device) {
  return {device.type == DeviceType::cuda ? at::kCUDA : at::kCPU, static_cast<c10::DeviceIndex>(device.index)};
}

}  // namespace

void Recorder::add_group(const ProcessGroupPtr& group) {
  auto& groups = program_.groups;
  if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
}

/// Nothing to send or receive: its address may be null, or happen to be that of other memory.
ValueId Recorder::no_memory() {
  if (!no_memory_) {
    const auto nothing = at::empty({0}, at::TensorOptions(at::kByte));
    no_memory_ = add_value(nothing, GraphValue::Origin::constant);
    program_.values[*no_memory_].constant = nothing;
    program_.values[*no_memory_].is_of_recorder = true;
  }
  return *no_memory_;
}

Piece Recorder::piece_of(const std::byte* begin, std::size_t bytes, const Operation& op, const Issue& issue) {
  if (bytes == 0) return {.value = no_memory(), .offset = 0, .bytes = 0};
  if (const auto place = table_.find_memory(begin, bytes)) {
    return {.value = place->value, .offset = place->offset, .bytes = bytes};
  }
  const ConstBuffer* buffer = nullptr;
  const auto look = [&](const ConstBuffer& each) {
    const auto* const data = static_cast<const std::byte*>(each.data());
    if (data <= begin && begin + bytes <= data + each.bytes()) buffer = &each;
  };
  for (const auto& each : op.input_buffers) look(each);
  for (const auto& each : op.output_buffers) look(each);
  if (buffer == nullptr || buffer->keep_alive() == nullptr) {
    throw CaptureError(CaptureRefusal::unsupported_call,
                       fmt::format("{} on group {} with {} bytes of memory that is no tensor", to_string(op.type),
                                   issue.group.id(), bytes),
                       "a replay would use the same memory, which may not exist any more",
                       {"Use tensors in the step."});
  }
  const auto blob = at::from_blob(
      const_cast<void*>(buffer->data()), {static_cast<std::int64_t>(buffer->bytes())},
      [held = buffer->keep_alive()](void* /*data*/) {},
      at::TensorOptions(at::kByte).device(torch_device(buffer->device())));
  const auto value = add_value(blob, GraphValue::Origin::constant);
  program_.values[value].constant = blob;
  program_.values[value].is_of_recorder = true;
  return {.value = value,
          .offset = static_cast<std::size_t>(begin - static_cast<const std::byte*>(buffer->data())),
          .bytes = bytes};
}

Collective Recorder::collective_of(const Operation& op, const Issue& issue, Instruction& instruction) {
  Collective collective{.operation = {.type = op.type,
                                      .dtype = op.dtype,
                                      .reduce = op.reduce,
                                      .root = op.root,
                                      .peer = op.peer,
                                      .tag = op.tag,
                                      .layout = op.layout},
                        .ins = {},
                        .outs = {},
                        .options = issue.options,
                        .members = {}};
  for (const auto& each : op.ins) collective.ins.push_back(piece_of(each.data(), each.size(), op, issue));
  for (const auto& each : op.outs) {
    collective.outs.push_back(piece_of(each.data(), each.size(), op, issue));
    table_.mark_written(each.data());
  }
  for (const auto& each : collective.ins) instruction.reads.push_back(each.value);
  for (const auto& each : collective.outs) instruction.writes.push_back(each.value);
  for (const auto& each : op.members) collective.members.push_back(collective_of(each, issue, instruction));
  return collective;
}

void Recorder::observe(const Issue& issue) {
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(wrapper_key);
  record([&] {
    if (!issue.host_function.empty()) {
      throw CaptureError(CaptureRefusal::unsupported_call,
                         fmt::format("{}() on group {}", issue.host_function, issue.group.id()),
                         "its result is for the host (bytes, a group, an error), and a replay would not run what the "
                         "host does with it",
                         {"Call it before the step or after it; groups and meshes are made before the step.",
                          "Exchange what the step itself needs as tensors, by a collective."});
    }
    Instruction instruction;
    CollectiveCall call{.group = issue.group.shared_from_this(),
                        .collective = std::make_shared<const Collective>(collective_of(issue.op, issue, instruction))};
    if (issue.options.async_op) {
      call.flight = program_.flights++;
      in_flight_.push_back({.work = issue.work, .instruction = program_.instructions.size()});
    }
    add_group(call.group);
    instruction.action = std::move(call);
    add(std::move(instruction));
  });
}

void Recorder::observe_wait(const Work& work) {
  record([&] {
    const auto flight = std::find_if(in_flight_.begin(), in_flight_.end(),
                                     [&](const Flight& each) { return each.work.is_same_operation(work); });
    if (flight == in_flight_.end()) return;
    add(wait_for(program_.instructions[flight->instruction]));
    in_flight_.erase(flight);
  });
}

}  // namespace cohort::recording
