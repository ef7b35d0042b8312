// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/process_group.h>

#include <list>
#include <utility>

#include "group/process_group_state.h"

namespace cohort {

using detail::OwnedOperation;

struct Batch::Content {
  ProcessGroupPtr group;
  std::list<OwnedOperation> operations;
  std::optional<DeviceType> device;
};

Batch::Batch(ProcessGroupPtr group) : Operations(group->rank(), group->size()), content_(std::make_unique<Content>()) {
  content_->group = std::move(group);
}

Batch::Batch(Batch&&) noexcept = default;
Batch::~Batch() = default;

std::size_t Batch::size() const noexcept {
  return content_->operations.size();
}

Work Batch::submit(const Operation& op, const detail::SubmitOptions& options) {
  if (options.async_op || !options.timeout.is_default() || options.stream != nullptr) {
    throw ValueError("in a batch, async_op, timeout and stream are given to run()",
                     {.op = std::string(to_string(op.type))});
  }
  if (op.reduce.user() != nullptr) {
    throw NotSupportedError("a reduction of your own cannot be part of a batch",
                            {.op = std::string(to_string(op.type))});
  }
  // A barrier has no device and can be combined with operations on any device.
  if (!content_->device) {
    content_->device = options.device;
  } else if (options.device && content_->device != options.device) {
    throw ValueError("all operations of a batch must be on the same type of device",
                     {.op = std::string(to_string(op.type))});
  }
  content_->operations.emplace_back(op);
  return {};
}

namespace {

/// Completes one Work when all point-to-point operations of a batch, which run concurrently, have ended.
class Together {
 public:
  Together(std::size_t count, std::shared_ptr<detail::WorkState> work) : missing_(count), work_(std::move(work)) {}

  void arrived(const std::exception_ptr& error) {
    {
      const std::lock_guard lock(mutex_);
      if (error && !error_) error_ = error;
      if (--missing_ > 0) return;
    }
    error_ ? work_->fail(error_) : work_->succeed(-1);
  }

 private:
  std::mutex mutex_;
  std::size_t missing_;
  std::exception_ptr error_;
  std::shared_ptr<detail::WorkState> work_;
};

}  // namespace

Work Batch::run(const AllGatherOptions& options) {
  const auto operations = std::exchange(content_->operations, {});
  const auto device = std::exchange(content_->device, {});
  if (operations.empty()) return {};
  Operation whole{.type = OpType::coalesced};
  std::vector<ConstBuffer> inputs;
  std::vector<Buffer> outputs;
  std::size_t p2p = 0;
  for (const auto& each : operations) {
    whole.members.push_back(each.get());
    inputs.insert(inputs.end(), each.get().input_buffers.begin(), each.get().input_buffers.end());
    outputs.insert(outputs.end(), each.get().output_buffers.begin(), each.get().output_buffers.end());
    if (is_p2p(each.get().type)) ++p2p;
  }
  whole.input_buffers = inputs;
  whole.output_buffers = outputs;
  auto& group = *content_->group;
  if (p2p > 0 && p2p < operations.size())
    throw ValueError("a batch holds collectives or point-to-point operations, not both");
  auto& state = *group.state_;
  const detail::SubmitOptions how{
      .device = device, .async_op = options.async_op, .timeout = options.timeout, .stream = options.stream};
  if (p2p == 0 || state.backend_for(how, OpType::coalesced).is_stream_ordered()) return group.submit(whole, how);

  const auto work = std::make_shared<detail::WorkState>(whole, state.continuations);
  const auto together = std::make_shared<Together>(operations.size(), work);
  std::uint64_t first = 0;
  for (const auto& member : work->operation().get().members) {
    try {
      const auto part =
          group.submit(member, {.device = device, .async_op = true, .timeout = options.timeout, .batch = work.get()});
      // The operations are started one by one but waited for together, because a receive may come before the send that
      // it waits for.
      if (first == 0) first = part.sequence();
      WorkAccess::unobserved_future(part).on_done(
          [together, part](const auto& future) { together->arrived(future.exception()); });
    } catch (...) {
      together->arrived(std::current_exception());
    }
  }
  auto handle = WorkAccess::pending(OpType::coalesced, first, work);
  if (!options.async_op) handle.wait();
  return handle;
}

}  // namespace cohort
