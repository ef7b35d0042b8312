// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/backend.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cohort::staged {

namespace {

Buffer bytes_of(Bytes bytes) {
  return {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}};
}
ConstBuffer bytes_of(ConstBytes bytes) {
  return {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}};
}
BufferList list_of(const std::vector<Bytes>& pieces) {
  std::vector<Buffer> list;
  list.reserve(pieces.size());
  for (const auto& each : pieces) list.push_back(bytes_of(each));
  return list;
}
ConstBufferList list_of(const std::vector<ConstBytes>& pieces) {
  std::vector<ConstBuffer> list;
  list.reserve(pieces.size());
  for (const auto& each : pieces) list.push_back(bytes_of(each));
  return list;
}
Buffer numbers_of(Bytes bytes, DType dtype) {
  return {bytes.data(), dtype, {static_cast<std::int64_t>(bytes.size() / size_of(dtype))}};
}
ConstBuffer numbers_of(ConstBytes bytes, DType dtype) {
  return {bytes.data(), dtype, {static_cast<std::int64_t>(bytes.size() / size_of(dtype))}};
}

/// How an errand runs on the host's group.
struct How {
  bool async_op = false;
  std::chrono::milliseconds timeout{};
};

How until(Deadline deadline, bool async_op) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
  return {.async_op = async_op, .timeout = std::max(left, std::chrono::milliseconds(1))};
}

}  // namespace

/// One call: the places of its memory on the host, and what is to be done there. Memory of the host itself (the
/// library's own calls) is used where it is, at once.
class StagedBackend::StagedCall {
 public:
  StagedCall(StagedBackend& backend, Call& call) : backend_(backend), call_(call) {
    if (call.on_stream() == nullptr) return;
    journey_ = backend.batch_of(call);
    is_batched_ = journey_ != nullptr;
    if (!is_batched_) journey_ = backend.make_op(call);
  }

  ConstBytes in(ConstBytes data) const {
    if (journey_ == nullptr) return data;
    return journey_->stage(data.data(), data.size(), true, false);
  }
  Bytes out(Bytes data) const {
    if (journey_ == nullptr) return data;
    return journey_->stage(data.data(), data.size(), false, true);
  }
  Bytes in_place(Bytes data, bool comes_up = true) const {
    if (journey_ == nullptr) return data;
    return journey_->stage(data.data(), data.size(), true, comes_up);
  }
  std::vector<ConstBytes> in(std::span<const ConstBytes> pieces) const {
    std::vector<ConstBytes> staged;
    for (const auto& each : pieces) staged.push_back(in(each));
    return staged;
  }
  std::vector<Bytes> out(std::span<const Bytes> pieces) const {
    std::vector<Bytes> staged;
    for (const auto& each : pieces) staged.push_back(out(each));
    return staged;
  }

  /// `errand(group, how)` does it; copies of what it captured may outlive the call.
  template <class Errand>
  void go(Errand errand) const {
    if (journey_ == nullptr) {
      errand(*backend_.host_, until(call_.deadline(), false));
      return;
    }
    journey_->add([group = backend_.host_, deadline = call_.deadline(), errand = std::move(errand)] {
      return errand(*group, until(deadline, true));
    });
    if (!is_batched_) backend_.begin(journey_, call_);
  }

 private:
  StagedBackend& backend_;
  Call& call_;
  StagedOpPtr journey_;
  bool is_batched_ = false;
};

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

void StagedBackend::check_request(const Request& request) const {
  const int own = resources_->context->device();
  const auto check_device = [&](const ConstBuffer& buffer) {
    const auto& device = buffer.device();
    if (device.index < 0 || device.index == own) return;
    throw ValueError(
        fmt::format("{}: memory of {} in a group of cuda:{}", to_string(request.op), to_string(device), own),
        {.group = host_->id(), .op = std::string(to_string(request.op))});
  };
  for (const auto& each : request.inputs) check_device(each);
  for (const auto& each : request.outputs) check_device(each);
  if (request.op == OpType::recv_any_source) {
    throw NotSupportedError("device memory is not received from any source: name the peer",
                            {.group = host_->id(), .op = std::string(to_string(request.op))});
  }
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
  return std::make_shared<StagedOp>(StagedOp::What{.op = call.op(),
                                                   .sequence = call.sequence(),
                                                   .deadline = call.deadline(),
                                                   .timeout = call.timeout(),
                                                   .errors = errors},
                                    on.ending, resources_);
}

void StagedBackend::begin(const StagedOpPtr& op, Call& call) {
  auto& on = *call.on_stream();
  try {
    op->begin(on.stream);
  } catch (const Error& e) {
    // It is kept as others are: copies may be on their way already. Whoever waits for this rank waits in vain.
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

void StagedBackend::all_reduce(const Reduction& reduction, Call& call) {
  const StagedCall trip(*this, call);
  const Bytes data(static_cast<std::byte*>(reduction.out), reduction.bytes());
  const auto host = numbers_of(trip.in_place(data), reduction.dtype);
  trip.go([host, op = reduction.op](ProcessGroup& group, const How& how) {
    return group.all_reduce(host, {.op = op, .async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::reduce(const Reduction& reduction, int root, Call& call) {
  const StagedCall trip(*this, call);
  // Nothing is written to it away from the root.
  const Bytes data(static_cast<std::byte*>(const_cast<void*>(reduction.in)), reduction.bytes());
  const auto host = numbers_of(trip.in_place(data, rank() == root), reduction.dtype);
  trip.go([host, root, op = reduction.op](ProcessGroup& group, const How& how) {
    return group.reduce(host, {.root = root, .op = op, .async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::broadcast(Bytes data, int root, Call& call) {
  const StagedCall trip(*this, call);
  const auto host = bytes_of(rank() == root ? trip.in_place(data, false) : trip.out(data));
  trip.go([host, root](ProcessGroup& group, const How& how) {
    return group.broadcast(host, {.root = root, .async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::all_gather(ConstBytes in, std::span<const Bytes> outs, Call& call) {
  const StagedCall trip(*this, call);
  trip.go([from = bytes_of(trip.in(in)), to = list_of(trip.out(outs))](ProcessGroup& group, const How& how) {
    return group.all_gather(to, from, {.async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::gather(ConstBytes in, std::span<const Bytes> outs, int root, Call& call) {
  const StagedCall trip(*this, call);
  trip.go([from = bytes_of(trip.in(in)), to = list_of(trip.out(outs)), root](ProcessGroup& group, const How& how) {
    return group.gather(to, from, {.root = root, .async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::scatter(std::span<const ConstBytes> ins, Bytes out, int root, Call& call) {
  const StagedCall trip(*this, call);
  trip.go([from = list_of(trip.in(ins)), to = bytes_of(trip.out(out)), root](ProcessGroup& group, const How& how) {
    return group.scatter(to, from, {.root = root, .async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) {
  const StagedCall trip(*this, call);
  std::vector<ConstBuffer> from;
  for (const auto& each : trip.in(ins)) from.push_back(numbers_of(each, reduction.dtype));
  const Bytes out(static_cast<std::byte*>(reduction.out), reduction.bytes());
  const auto to = numbers_of(trip.out(out), reduction.dtype);
  trip.go([from = ConstBufferList(from), to, op = reduction.op](ProcessGroup& group, const How& how) {
    return group.reduce_scatter(to, from, {.op = op, .async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, Call& call) {
  const StagedCall trip(*this, call);
  trip.go([from = list_of(trip.in(ins)), to = list_of(trip.out(outs))](ProcessGroup& group, const How& how) {
    return group.all_to_all(to, from, {.async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::barrier(Call& call) {
  StagedCall(*this, call).go([](ProcessGroup& group, const How& how) {
    return group.barrier({.async_op = how.async_op, .timeout = how.timeout});
  });
}

void StagedBackend::send(ConstBytes data, int peer, int tag, Call& call) {
  const StagedCall trip(*this, call);
  trip.go([from = bytes_of(trip.in(data)), peer, tag](ProcessGroup& group, const How& how) {
    return group.send(from, peer, {.tag = tag, .async_op = how.async_op, .timeout = how.timeout});
  });
}

int StagedBackend::recv(Bytes data, int peer_or_any, int tag, Call& call) {
  const StagedCall trip(*this, call);
  trip.go([to = bytes_of(trip.out(data)), peer_or_any, tag](ProcessGroup& group, const How& how) {
    return group.recv(to, peer_or_any, {.tag = tag, .async_op = how.async_op, .timeout = how.timeout});
  });
  return peer_or_any;
}

BackendPtr StagedBackend::split(const BackendSplit& split, Deadline deadline) {
  auto group = host_->split_group(split.ranks, {.timeout = until(deadline, false).timeout});
  if (group == nullptr) return nullptr;
  group->set_timeout(split.timeout.value_or(host_->timeout()));
  return std::make_shared<StagedBackend>(std::move(group), resources_->context);
}

void StagedBackend::abort(std::string_view reason) {
  staging_thread_.close(std::make_exception_ptr(AbortedError(std::string(reason), {.group = host_->id()})));
  host_->abort(reason);
}

void StagedBackend::drain() {
  staging_thread_.drain();
}

void StagedBackend::shutdown() {
  staging_thread_.drain();
  host_->shutdown();
}

}  // namespace cohort::staged
