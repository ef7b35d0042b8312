// SPDX-License-Identifier: BSD-3-Clause
#include "backends/fake/device_memory.h"

#include <cohort/error.h>

#include <sched.h>

#include <algorithm>
#include <string>

namespace cohort::fake {

namespace {

int device_of(const Operation& op, const cuda::Driver& driver) {
  if (!op.members.empty()) return device_of(op.members.front(), driver);
  for (const auto& buffer : op.output_buffers) {
    if (buffer.device().index >= 0) return buffer.device().index;
  }
  for (const auto& buffer : op.input_buffers) {
    if (buffer.device().index >= 0) return buffer.device().index;
  }
  return cuda::Context::current_device(driver);
}

}  // namespace

cuda::ContextPtr DeviceMemory::context_of(const Operation& op) {
  const int device = device_of(op, driver_);
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(contexts_.begin(), contexts_.end(),
                                  [&](const cuda::ContextPtr& each) { return each->device() == device; });
  if (known != contexts_.end()) return *known;
  cuda::start(driver_);
  contexts_.push_back(std::make_shared<const cuda::Context>(driver_, device));
  return contexts_.back();
}

bool DeviceMemory::is_capturing(const Call& call) const {
  int capturing = 0;
  if (call.on_stream()->stream == nullptr) return false;
  cuda::check(driver_, driver_.stream_is_capturing(call.on_stream()->stream, &capturing), "cuStreamIsCapturing");
  return capturing != 0;
}

void DeviceMemory::wait(const cuda::ContextPtr& context, Call& call) const {
  const cuda::Event event(context, false);
  cuda::check(driver_, driver_.event_record(event.get(), call.on_stream()->stream), "cuEventRecord");
  const cuda::BesideCaptures beside(driver_);
  for (;;) {
    const auto result = driver_.event_query(event.get());
    if (result == cuda::success) return;
    if (result != cuda::not_ready) cuda::check(driver_, result, "cuEventQuery");
    if (call.deadline().expired()) {
      throw OperationTimeoutError("the stream did not reach the operation in time",
                                  {.op = std::string(to_string(call.op())), .sequence = call.sequence()});
    }
    ::sched_yield();
  }
}

void DeviceMemory::copy(Bytes to, ConstBytes from, const Operation& op, const Call& call) {
  const auto context = context_of(op);
  const cuda::Current current(*context);
  cuda::check(driver_,
              driver_.copy_async(cuda::address_of(to.data()), cuda::address_of(from.data()),
                                 std::min(to.size(), from.size()), call.on_stream()->stream),
              "cuMemcpyAsync");
}

void DeviceMemory::apply(const std::function<void(ConstBytes in, Bytes out)>& compute, ConstBytes in, Bytes out,
                         const Operation& op, Call& call) {
  const auto context = context_of(op);
  const cuda::Current current(*context);
  if (is_capturing(call)) {
    throw NotSupportedError(
        "a fake group with simulate_uniform_ranks computes on the host, which a graph cannot replay: capture without "
        "that option",
        {.op = std::string(to_string(call.op())), .sequence = call.sequence()});
  }
  std::vector<std::byte> host_in(in.size());
  std::vector<std::byte> host_out(out.size());
  copy(host_in, in, op, call);
  wait(context, call);
  compute(host_in, host_out);
  copy(out, host_out, op, call);
  wait(context, call);
}

void DeviceMemory::wait(const Operation& op, Call& call) {
  const auto context = context_of(op);
  const cuda::Current current(*context);
  if (!is_capturing(call)) wait(context, call);
}

}  // namespace cohort::fake
