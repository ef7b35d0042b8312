// SPDX-License-Identifier: BSD-3-Clause
#include "group/streamed.h"

#include <cohort/completion.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include <utility>

#include "group/mismatch.h"

namespace cohort {

using detail::SubmitOptions;

namespace {

/// Keeps the operation's memory and its group alive, and notifies the recorder, the hooks and the Work of how it ended.
class Streamed final : public CompletionHandler {
 public:
  Streamed(std::shared_ptr<detail::GroupState> state, std::shared_ptr<detail::WorkState> work)
      : state_(std::move(state)), work_(std::move(work)) {}

  /// The flight recorder takes this as the start of the operation, because it is not known when the device starts.
  void begin(std::uint64_t sequence, std::chrono::milliseconds timeout) {
    record_.emplace(*state_, work_->operation().get(), sequence, timeout, OpRecord::Start::now);
  }
  void ended(std::exception_ptr error) noexcept override {
    if (has_ended_.exchange(true)) return;
    try {
      if (record_) error ? record_->failed(error) : record_->succeeded();
      const auto& op = work_->operation().get();
      const int source = op.type == OpType::recv ? op.peer : -1;
      error ? work_->fail(error) : work_->succeed(source);
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("the end of an operation of group {} was lost: {}", state_->id, e.what()));
    }
  }

 private:
  std::shared_ptr<detail::GroupState> state_;
  std::shared_ptr<detail::WorkState> work_;
  std::optional<OpRecord> record_;
  std::atomic<bool> has_ended_{false};
};

void check(const Backend& backend, const Operation& op) {
  for (const auto& member : op.members) check(backend, member);
  backend.check_arguments(op);
}

bool consists_of_p2p(const Operation& op) {
  return is_p2p(op.type) || (!op.members.empty() && is_p2p(op.members.front().type));
}

}  // namespace

Work run_on_stream(const std::shared_ptr<detail::GroupState>& state, Backend& backend, const Operation& op,
                   const SubmitOptions& options) {
  check(backend, op);
  const auto timeout = state->timeout_of(options);
  const auto deadline = Deadline::after(timeout);
  const auto work = std::make_shared<detail::WorkState>(op, state->continuations);
  const auto streamed = std::make_shared<Streamed>(state, work);
  OnStream on{.stream = options.stream, .is_async = options.async_op, .handler = streamed};
  const bool is_p2p_only = consists_of_p2p(op);
  std::uint64_t number = 0;
  const auto enqueue = [&](std::uint64_t sequence) {
    number = sequence;
    streamed->begin(sequence, timeout);
    Call call(op.type, sequence, deadline, timeout);
    if (state->debug == DebugLevel::detail && !is_p2p_only) compare_on_all_ranks(backend, op, call);
    call.set_on_stream(on);
    backend.perform(op, call);
  };
  try {
    if (is_p2p_only) {
      enqueue(state->p2p_sequence.fetch_add(1, std::memory_order_relaxed) + 1);
    } else {
      state->in_turn(enqueue);
    }
  } catch (...) {
    streamed->ended(std::current_exception());
    if (!options.async_op) throw;
  }
  if (on.completion == nullptr) {
    streamed->ended(nullptr);
  } else {
    work->set_completion(std::move(on.completion), options.stream);
  }
  // Without async_op, the user's stream orders every use of the memory. With async_op, only this Work knows that the
  // memory is in use.
  const bool is_borrowed = options.async_op && work->operation().is_borrowed();
  auto handle = WorkAccess::enqueued(op.type, number, work, is_borrowed);
  if (op.type == OpType::barrier && !options.async_op) handle.wait();
  return handle;
}

}  // namespace cohort
