// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/enqueued.h"

#include <fmt/format.h>
#include <sched.h>

#include <thread>
#include <utility>

namespace cohort::nccl {

Enqueued::Enqueued(Call& call, void* stream, bool is_captured, cuda::ContextPtr context,
                   std::shared_ptr<cuda::EventPool> events, bool is_timed)
    : call_(call.detached()),
      deadline_(call.deadline()),
      stream_(stream),
      is_captured_(is_captured),
      context_(std::move(context)),
      events_(std::move(events)),
      handler_(call.on_stream()->handler) {
  // An event that a graph contains is not used for anything else.
  const auto take = [&] { return is_captured_ ? std::make_unique<cuda::Event>(context_, false) : events_->take(); };
  end_ = take();
  if (is_timed && !is_captured_) start_ = take();
}

Enqueued::~Enqueued() {
  if (is_captured_) return;
  events_->give_back(std::move(end_));
  if (start_ != nullptr) events_->give_back(std::move(start_));
}

void Enqueued::record_start() {
  if (start_ != nullptr) cuda::check(driver(), driver().event_record(start_->get(), stream_), "cuEventRecord");
}

void Enqueued::record_end() {
  cuda::check(driver(), driver().event_record(end_->get(), stream_), "cuEventRecord");
}

bool Enqueued::is_done() {
  if (has_ended()) return true;
  const cuda::BesideCaptures beside(driver());
  const auto result = driver().event_query(end_->get());
  if (result == cuda::not_ready) return false;
  if (result == cuda::success) {
    end(nullptr);
  } else {
    end(std::make_exception_ptr(
        BackendError(fmt::format("the device failed: {}", cuda::describe(driver(), result)),
                     {.op = std::string(to_string(call_.op())), .sequence = call_.sequence()})));
  }
  return true;
}

void Enqueued::order(void* stream) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  if (stream == stream_ || (has_ended() && !is_captured_)) return;
  const cuda::Current current(*context_);
  cuda::check(driver(), driver().stream_wait_event(stream, end_->get(), 0), "cuStreamWaitEvent");
}

bool Enqueued::wait(Deadline deadline) {
  // The driver's own wait has no deadline.
  for (int round = 0; !is_done(); ++round) {
    if (deadline.expired()) return false;
    if (round < 100) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(round < 1000 ? 20 : 500));
    }
  }
  return true;
}

std::optional<std::chrono::nanoseconds> Enqueued::duration() {
  if (start_ == nullptr || !is_done()) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return std::nullopt;
  }
  float milliseconds = 0;
  if (driver().event_elapsed(&milliseconds, start_->get(), end_->get()) != cuda::success) return std::nullopt;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
}

void Enqueued::end(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (has_ended_.load(std::memory_order_relaxed)) return;
    error_ = error;
    has_ended_.store(true, std::memory_order_release);
  }
  const auto handler = std::move(handler_);
  if (handler != nullptr) handler->ended(std::move(error));
}

}  // namespace cohort::nccl
