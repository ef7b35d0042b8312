// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/work.h>

#include <fmt/format.h>

#include "group/issue_notifier.h"
#include "group/work_state.h"

namespace cohort {

namespace detail {

void throw_wait_expired(std::chrono::milliseconds timeout) {
  throw OperationTimeoutError(
      fmt::format("not done after waiting for {} ms; the operation continues", timeout.count()));
}

void WorkState::succeed(int source) {
  source_.store(source, std::memory_order_release);
  auto outputs = operation_->outputs();
  future_->set_value(std::move(outputs));
}

void WorkState::fail(std::exception_ptr error) {
  future_->set_exception(std::move(error));
}

WorkHandle::~WorkHandle() {
  if (is_borrowed_) {
    state_->wait(Deadline::never());  // the operation's deadline bounds the wait
  } else if (!state_->is_done()) {
    // Captures only the future, so that the continuation thread does not free the operation and its device resources.
    state_->future()->when_done([future = state_->future()] {
      try {
        if (future->error()) std::rethrow_exception(future->error());
      } catch (const std::exception& e) {
        log(LogLevel::warn, fmt::format("an operation nobody waited for failed: {}", e.what()));
      }
    });
  }
}

}  // namespace detail

Work WorkAccess::pending(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state) {
  const bool is_borrowed = state->operation().is_borrowed();
  return enqueued(op, sequence, std::move(state), is_borrowed);
}

Work WorkAccess::enqueued(OpType op, std::uint64_t sequence, std::shared_ptr<detail::WorkState> state,
                          bool is_borrowed) {
  Work work(op, sequence, -1, {});
  work.handle_ = std::make_shared<detail::WorkHandle>(std::move(state), is_borrowed);
  return work;
}

bool Work::is_completed() const {
  return handle_ == nullptr || handle_->state().is_done();
}

void Work::wait_unobserved() const {
  if (handle_ == nullptr) return;
  // A barrier means that the other ranks have arrived, which only the host can wait for.
  if (op_ != OpType::barrier && handle_->state().order()) return;
  handle_->state().wait_or_perform(sequence_);
  if (handle_->state().error()) std::rethrow_exception(handle_->state().error());
}

void Work::wait() const {
  wait_unobserved();
  IssueNotifier::notify_wait(*this);
}

void Work::wait(Timeout timeout) const {
  if (handle_ == nullptr) return;
  const auto duration = timeout.duration_or(no_timeout);
  if (!handle_->state().wait(Deadline::after(duration))) {
    throw OperationTimeoutError(
        fmt::format("not done after waiting for {} ms; the operation continues", duration.count()),
        {.op = std::string(to_string(op_)), .sequence = sequence_});
  }
  if (handle_->state().error()) std::rethrow_exception(handle_->state().error());
  IssueNotifier::notify_wait(*this);
}

void Work::wait_on(void* stream) const {
  if (handle_ == nullptr || op_ == OpType::barrier || !handle_->state().order(stream)) wait_unobserved();
  IssueNotifier::notify_wait(*this);
}

void Work::synchronize() const {
  if (handle_ != nullptr) handle_->state().order();
}

std::optional<std::chrono::nanoseconds> Work::duration() const {
  return handle_ == nullptr ? std::nullopt : handle_->state().duration();
}

std::exception_ptr Work::exception() const {
  return handle_ != nullptr && handle_->state().is_done() ? handle_->state().error() : nullptr;
}

int Work::source_rank() const {
  if (op_ != OpType::recv && op_ != OpType::recv_any_source) {
    throw Error(fmt::format("source_rank: {} receives nothing", to_string(op_)));
  }
  if (!is_completed()) throw Error("source_rank: the receive has not ended yet");
  if (handle_ == nullptr) return source_;
  if (handle_->state().error()) std::rethrow_exception(handle_->state().error());
  return handle_->state().source();
}

std::vector<Buffer> Work::result() const {
  if (!is_completed()) throw Error(fmt::format("result: {} #{} has not ended yet", to_string(op_), sequence_));
  if (handle_ != nullptr) return handle_->state().outputs();
  return output_ ? std::vector<Buffer>{*output_} : outputs_;
}

Future<std::vector<Buffer>> Work::future() const {
  if (handle_ != nullptr && IssueNotifier::are_waits_observed()) [[unlikely]] {
    handle_->state().wait(Deadline::never());  // the operation's deadline bounds the wait
    if (!handle_->state().error()) IssueNotifier::notify_wait(*this);
  }
  return unobserved_future();
}

Future<std::vector<Buffer>> WorkAccess::unobserved_future(const Work& work) {
  return work.unobserved_future();
}

Future<std::vector<Buffer>> Work::unobserved_future() const {
  if (handle_ != nullptr) return Future<std::vector<Buffer>>(handle_->state().future());
  Promise<std::vector<Buffer>> promise;
  promise.set_value(result());
  return promise.future();
}

}  // namespace cohort
