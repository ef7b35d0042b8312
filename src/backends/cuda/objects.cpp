// SPDX-License-Identifier: BSD-3-Clause
#include "backends/cuda/objects.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cohort::cuda {

Context::Context(const Driver& driver, int device) : driver_(driver), device_(device) {
  int count = 0;
  check(driver, driver.device_count(&count), "cuDeviceGetCount");
  if (device < 0 || device >= count) {
    throw ValueError(fmt::format("there is no device cuda:{}: this process sees {}", device, count));
  }
  check(driver, driver.primary_context_retain(&context_, device), "cuDevicePrimaryCtxRetain");
}

Context::~Context() {
  driver_.primary_context_release(device_);
}

int Context::current_device(const Driver& driver) {
  void* context = nullptr;
  if (driver.context_get_current(&context) != success || context == nullptr) return 0;
  int device = 0;
  check(driver, driver.context_get_device(&device), "cuCtxGetDevice");
  return device;
}

Current::Current(const Context& context) : driver_(context.driver()) {
  check(driver_, driver_.context_get_current(&before_), "cuCtxGetCurrent");
  if (before_ == context.get()) return;
  check(driver_, driver_.context_set_current(context.get()), "cuCtxSetCurrent");
  has_changed_ = true;
}

Current::~Current() {
  if (has_changed_) driver_.context_set_current(before_);
}

Stream::Stream(ContextPtr context, bool high_priority) : context_(std::move(context)) {
  const auto& driver = context_->driver();
  const Current current(*context_);
  int priority = 0;
  if (high_priority) {
    int least = 0;
    check(driver, driver.stream_priority_range(&least, &priority), "cuCtxGetStreamPriorityRange");
  }
  check(driver, driver.stream_create(&stream_, stream_non_blocking, priority), "cuStreamCreateWithPriority");
}

Stream::~Stream() {
  context_->driver().stream_destroy(stream_);
}

Event::Event(ContextPtr context, bool with_timing) : context_(std::move(context)) {
  const auto& driver = context_->driver();
  const Current current(*context_);
  check(driver, driver.event_create(&event_, with_timing ? 0 : event_without_timing), "cuEventCreate");
}

Event::~Event() {
  context_->driver().event_destroy(event_);
}

EventPtr EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto event = std::move(free_.back());
      free_.pop_back();
      return event;
    }
  }
  return std::make_unique<Event>(context_, with_timing_);
}

void EventPool::give_back(EventPtr event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(event));
}

Memory::Memory(ContextPtr context, std::size_t bytes) : context_(std::move(context)), bytes_(bytes) {
  const auto& driver = context_->driver();
  const Current current(*context_);
  check(driver, driver.memory_allocate(&address_, std::max<std::size_t>(bytes, 1)), "cuMemAlloc");
}

Memory::~Memory() {
  try {
    const Current current(*context_);
    context_->driver().memory_free(address_);
  } catch (const BackendError&) {
    return;  // without a context, the memory has been freed already
  }
}

void check_devices(const Context& context, const Operation& op, const std::string& group) {
  const auto check = [&](const ConstBuffer& buffer) {
    const auto& device = buffer.device();
    if (device.index < 0 || device.index == context.device()) return;
    throw ValueError(
        fmt::format("{}: memory of {} in a group of cuda:{}", to_string(op.type), to_string(device), context.device()),
        {.group = group, .op = std::string(to_string(op.type))});
  };
  std::ranges::for_each(op.input_buffers, check);
  std::ranges::for_each(op.output_buffers, check);
}

}  // namespace cohort::cuda
