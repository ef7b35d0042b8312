// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/backend.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "group/process_group_state.h"

namespace cohort::staged {

namespace {

/// The time left until the deadline, for the host's group.
std::chrono::milliseconds time_left(Deadline deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()), std::chrono::milliseconds(1));
}

/// The same operation on host memory: each piece gets a host buffer, which is copied from the device before the
/// operation if it is read, and to the device afterwards if it is written. Pieces that are the same memory (in place)
/// share a buffer.
Operation on_host(const Operation& op, StagedOp& staged, int rank) {
  Operation host{.type = op.type,
                 .dtype = op.dtype,
                 .reduce = op.reduce,
                 .root = op.root,
                 .peer = op.peer,
                 .tag = op.tag,
                 .layout = op.layout};
  if (op.type == OpType::all_reduce || op.type == OpType::reduce) {
    const auto place = staged.stage(op.in().data(), op.in().size(), true, !op.outs.empty());
    host.ins.push_back(place);
    if (!op.outs.empty()) host.outs.push_back(place);
    return host;
  }
  for (const auto& in : op.ins) host.ins.push_back(staged.stage(in.data(), in.size(), true, false));
  // The data of a broadcast is read on the root and written on the other ranks.
  const bool is_source = op.type == OpType::broadcast && rank == op.root;
  for (const auto& out : op.outs) host.outs.push_back(staged.stage(out.data(), out.size(), is_source, !is_source));
  return host;
}

}  // namespace

StagedBackend::StagedBackend(ProcessGroupPtr host, const cuda::ContextPtr& context)
    : Backend(host->name(), host->rank(), host->size(), true),
      host_(std::move(host)),
      resources_(std::make_shared<StagingResources>(context)),
      staging_thread_([group = host_](const std::exception_ptr& error) {
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& e) {
          group->abort(e.what());
        }
      }) {}

StagedBackend::~StagedBackend() = default;

Capabilities StagedBackend::capabilities() const {
  auto capabilities = host_->capabilities();
  capabilities.operations &= ~Capabilities::bit(OpType::recv_any_source);
  capabilities.group_memory = false;
  capabilities.shrinking = false;
  capabilities.stream_ordered = true;
  return capabilities;
}

void StagedBackend::check_arguments(const Operation& op) const {
  cuda::check_devices(*resources_->context, op, host_->id());
  if (op.type == OpType::recv_any_source) {
    throw NotSupportedError("receiving device memory from any source is not supported: name the peer",
                            {.group = host_->id(), .op = std::string(to_string(op.type))});
  }
}

int StagedBackend::perform(const Operation& op, Call& call) {
  if (!op.members.empty()) return Backend::perform(op, call);
  if (call.on_stream() == nullptr) {  // the library's own calls use host memory
    GroupAccess::submit(*host_, op, {.timeout = time_left(call.deadline())});
    return op.type == OpType::recv ? op.peer : -1;
  }
  const auto batch = batch_of(call);
  const auto staged = batch == nullptr ? make_op(call) : batch;
  staged->add([group = host_, deadline = call.deadline(), host = on_host(op, *staged, rank())] {
    return GroupAccess::submit(*group, host, {.async_op = true, .timeout = time_left(deadline)});
  });
  if (batch == nullptr) begin(staged, call);
  return op.type == OpType::recv ? op.peer : -1;
}

StagedOpPtr StagedBackend::make_op(Call& call) {
  const auto& on = *call.on_stream();
  const ErrorContext errors{.group = host_->id(), .op = std::string(to_string(call.op())), .sequence = call.sequence()};
  const auto& driver = resources_->context->driver();
  int capturing = 0;
  if (on.stream != nullptr) {
    const cuda::Current current(*resources_->context);
    cuda::check(driver, driver.stream_is_capturing(on.stream, &capturing), "cuStreamIsCapturing");
  }
  if (capturing != 0) {
    throw NotSupportedError(
        fmt::format("backend {} works on the host, which a graph cannot replay: capture with nccl", name()), errors);
  }
  return std::make_shared<StagedOp>(call, host_->id(), resources_);
}

void StagedBackend::begin(const StagedOpPtr& op, Call& call) {
  auto& on = *call.on_stream();
  try {
    op->begin(on.stream);
  } catch (const Error& e) {
    // The failed operation is kept like any other, because copies may be in flight already. The other ranks would wait
    // for this one in vain, so the group is aborted.
    op->fail(std::current_exception());
    abort(e.message());
  }
  staging_thread_.add(op);
  on.completion = op;
  if (!on.is_async) op->order(on.stream);
}

StagedOpPtr StagedBackend::batch_of(const Call& call) {
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(&call);
  return found == batches_.end() ? nullptr : found->second;
}

void StagedBackend::begin_batch(Call& call) {
  if (call.on_stream() == nullptr) refuse("a batch on host memory");
  auto op = make_op(call);
  const std::lock_guard lock(mutex_);
  batches_.emplace(&call, std::move(op));
}

void StagedBackend::end_batch(Call& call) {
  StagedOpPtr op;
  {
    const std::lock_guard lock(mutex_);
    op = std::move(batches_.extract(&call).mapped());
  }
  begin(op, call);
}

void StagedBackend::cancel_batch(Call& call) noexcept {
  const std::lock_guard lock(mutex_);
  batches_.erase(&call);
}

BackendPtr StagedBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr StagedBackend::partition(std::span<const BackendSplit> parts, Deadline deadline) {
  std::vector<std::vector<int>> ranks;
  ranks.reserve(parts.size());
  for (const auto& part : parts) ranks.push_back(part.ranks);
  auto group = host_->partition(ranks, {.timeout = time_left(deadline)});
  if (group == nullptr) return nullptr;
  group->set_timeout(parts.front().timeout.duration_or(host_->timeout()));
  return std::make_shared<StagedBackend>(std::move(group), resources_->context);
}

void StagedBackend::abort(std::string_view reason) {
  staging_thread_.close(std::make_exception_ptr(AbortedError(std::string(reason), {.group = host_->id()})));
  host_->abort(reason);
}

bool StagedBackend::drain(Deadline deadline) {
  return staging_thread_.drain(deadline);
}

void StagedBackend::shutdown(Deadline deadline) {
  if (staging_thread_.drain(deadline)) host_->shutdown(deadline);
}

}  // namespace cohort::staged
