// SPDX-License-Identifier: BSD-3-Clause
#include "group/op_record.h"

#include <cohort/error.h>
#include <cohort/flight_recorder.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include "group/process_group_state.h"

namespace cohort {

void OpRecord::begin(const Operation& op, std::uint64_t sequence, std::chrono::milliseconds timeout, Start start) {
  trace_ = state_.fast_trace.load(std::memory_order_acquire);
  if (trace_ != nullptr) {
    const bool p2p = is_p2p(op.type);
    trace_->begin({.op = to_string(op.type).data(),
                   .is_p2p = p2p,
                   .starts_at_once = start != Start::later,
                   .ends_at_once = start == Start::now_and_ends,
                   .collective_sequence = p2p ? 0 : static_cast<std::int64_t>(sequence),
                   .p2p_sequence = p2p ? static_cast<std::int64_t>(sequence) : 0,
                   .op_id = static_cast<std::int64_t>(sequence),
                   .input = observe::Shape::of_all(op.input_buffers),
                   .output = observe::Shape::of_all(op.output_buffers),
                   .timeout_ms = timeout.count(),
                   .peer = p2p ? op.peer : -1},
                  record_);
  }
  if (!state_.has_hooks.load(std::memory_order_acquire)) return;
  event_ = std::make_unique<HookEvent>(HookEvent{.op = op.type,
                                                 .sequence = sequence,
                                                 .group = state_.id,
                                                 .bytes = detail::payload_bytes(op),
                                                 .started = std::chrono::steady_clock::now()});
  std::vector<Hook> hooks;
  {
    const std::lock_guard lock(state_.mutex);
    hooks = state_.pre_hooks;
  }
  run_hooks(hooks);
}

void OpRecord::started() {
  if (trace_ != nullptr) trace_->started(record_);
}

void OpRecord::succeeded() {
  if (trace_ != nullptr) trace_->completed(record_);
  if (event_) finish(nullptr);
}

void OpRecord::failed(const std::exception_ptr& error) {
  if (trace_ != nullptr) trace_->failed(record_);
  if (event_) finish(error);
  if (state_.has_dumped.exchange(true)) return;
  try {
    std::rethrow_exception(error);
  } catch (const BackendError& e) {
    FlightRecorder::dump(e.what());
  } catch (...) {
    state_.has_dumped = false;  // the call failed, not the group
  }
}

void OpRecord::finish(const std::exception_ptr& error) {
  event_->finished = std::chrono::steady_clock::now();
  event_->duration = event_->finished - event_->started;
  event_->error = error;
  std::vector<Hook> hooks;
  {
    const std::lock_guard lock(state_.mutex);
    hooks = state_.post_hooks;
  }
  run_hooks(hooks);
}

void OpRecord::run_hooks(const std::vector<Hook>& hooks) {
  for (const auto& hook : hooks) {
    try {
      hook(*event_);
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("a hook of group {} threw: {}", state_.id, e.what()));
    } catch (...) {
      log(LogLevel::error, fmt::format("a hook of group {} threw something that is not a std::exception", state_.id));
    }
  }
}

}  // namespace cohort
