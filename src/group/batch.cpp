// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/process_group.h>

#include <list>
#include <utility>

#include "group/process_group_state.h"

namespace cohort {

using detail::Operation;
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

Work Batch::submit(Operation& operation, const detail::Issue& issue) {
  if (issue.async_op || !issue.timeout.is_default() || issue.stream != nullptr) {
    throw ValueError("in a batch, async_op, timeout and stream are given to run()",
                     {.op = std::string(to_string(operation.type))});
  }
  // A barrier is of no device, and goes with any.
  if (!content_->device) {
    content_->device = issue.device;
  } else if (issue.device && content_->device != issue.device) {
    throw ValueError("a batch is of one device", {.op = std::string(to_string(operation.type))});
  }
  content_->operations.emplace_back(operation);
  return {};
}

namespace {

/// Point-to-point operations of a batch, all at once and in no order; a Work of all of them.
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
    inputs.insert(inputs.end(), each.get().inputs.begin(), each.get().inputs.end());
    outputs.insert(outputs.end(), each.get().outputs.begin(), each.get().outputs.end());
    if (is_p2p(each.get().type)) ++p2p;
  }
  whole.inputs = inputs;
  whole.outputs = outputs;
  auto& group = *content_->group;
  if (p2p > 0 && p2p < operations.size())
    throw ValueError("a batch holds collectives or point-to-point operations, not both");
  auto& state = *group.state_;
  const detail::Issue issue{
      .device = device, .async_op = options.async_op, .timeout = options.timeout, .stream = options.stream};
  if (p2p == 0 || state.backend_for(issue, OpType::coalesced).is_stream_ordered()) return group.submit(whole, issue);

  const auto work = std::make_shared<detail::WorkState>(whole, state.continuations);
  const auto together = std::make_shared<Together>(operations.size(), work);
  std::uint64_t first = 0;
  for (auto& each : work->operation().get().members) {
    auto member = each;
    try {
      const auto part = group.submit(member, {.device = device, .async_op = true, .timeout = options.timeout});
      // Started one by one, but waited for together: a receive may come before the send it waits for.
      if (first == 0) first = part.sequence();
      part.future().on_done([together, part](const auto& future) { together->arrived(future.exception()); });
    } catch (...) {
      together->arrived(std::current_exception());
    }
  }
  auto handle = WorkAccess::pending(OpType::coalesced, first, work);
  if (!options.async_op) handle.wait();
  return handle;
}

}  // namespace cohort
