// SPDX-License-Identifier: BSD-3-Clause
#include "measure/group_system.h"

#include <fmt/format.h>

namespace cohort::measure {

namespace {

ReduceOp op_of(Reduction reduction) {
  constexpr std::array ops{&ReduceOp::sum, &ReduceOp::product, &ReduceOp::min, &ReduceOp::max, &ReduceOp::avg};
  return ops.at(static_cast<std::size_t>(reduction))();
}

}  // namespace

GroupSystem::GroupSystem(ProcessGroupPtr group, MemoryKind kind, const Device& device)
    : group_(std::move(group)), kind_(kind), device_(device) {
  if (device.type == DeviceType::cuda) mirror_ = std::make_unique<DeviceMirror>(device);
}

std::optional<std::string> GroupSystem::refusal(const Command& command) const {
  if (kind_ == MemoryKind::group && is_on_device()) return "on a device only ordinary memory is measured";
  if (kind_ == MemoryKind::group && !group_->capabilities().group_memory) {
    return fmt::format("{} has no memory of the group", group_->name());
  }
  if (reduces(command.operation) && !is_reducible(command.dtype, op_of(command.reduction))) {
    return fmt::format("there is no {} of {}", to_string(command.reduction), to_string(command.dtype));
  }
  const bool only_in_place = command.operation == Operation::all_reduce || command.operation == Operation::reduce;
  if (only_in_place && !command.in_place) return "it works in place alone";
  if (command.operation == Operation::send_recv && size() < 2) return "it takes two ranks";
  return std::nullopt;
}

void* GroupSystem::memory(std::size_t number, std::size_t bytes) {
  if (kind_ == MemoryKind::ordinary) {
    void* const host = System::memory(number, bytes);
    if (is_on_device()) mirror_->mirror(number, static_cast<std::byte*>(host), bytes);
    return host;
  }
  auto& memory = shared_.at(number);
  if (bytes > memory.bytes()) {
    memory = {};
    memory = group_->allocate(bytes);
  }
  return memory.data();
}

void GroupSystem::release() {
  input_ = {};
  output_ = {};
  if (is_on_device()) mirror_->release();
  System::release();
  for (auto& memory : shared_) memory = {};
}

void GroupSystem::prepare(const Job& job) {
  const auto& c = job.command;
  if (!has_data(c.operation)) return;
  const auto block = static_cast<std::int64_t>(job.count);
  const auto whole = has_blocks(c.operation) ? block * size() : block;
  const auto place = [this](void* host) { return is_on_device() ? mirror_->at(host) : host; };
  input_ = Buffer(place(job.input), c.dtype, {c.operation == Operation::all_gather ? block : whole}, {}, device_);
  output_ = Buffer(place(job.output), c.dtype, {c.operation == Operation::reduce_scatter ? block : whole}, {}, device_);
}

Work GroupSystem::start(const Job& job) {
  const auto& c = job.command;
  const bool async = !c.blocking;
  switch (c.operation) {
    case Operation::all_reduce:
      return group_->all_reduce(output_, {.op = op_of(c.reduction), .async_op = async});
    case Operation::broadcast:
      return group_->broadcast(output_, {.root = c.root, .async_op = async});
    case Operation::reduce:
      return group_->reduce(output_, {.root = c.root, .op = op_of(c.reduction), .async_op = async});
    case Operation::all_gather:
      return group_->all_gather(output_, input_, {.async_op = async});
    case Operation::reduce_scatter:
      return group_->reduce_scatter(output_, input_, {.op = op_of(c.reduction), .async_op = async});
    case Operation::all_to_all:
      return group_->all_to_all(output_, input_, {.async_op = async});
    case Operation::barrier:
      return group_->barrier({.async_op = async});
    case Operation::send_recv:
      ping_pong([&](int other) { group_->send(input_, other); }, [&](int other) { group_->recv(output_, other); });
      return {};
  }
  return {};
}

void GroupSystem::run(const Job& job) {
  auto work = start(job);
  if (!job.command.blocking) under_way_.push_back(std::move(work));
}

void GroupSystem::finish() {
  for (const auto& work : under_way_) work.wait();
  under_way_.clear();
  if (is_on_device()) mirror_->synchronize();
}

}  // namespace cohort::measure
