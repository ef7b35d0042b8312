// SPDX-License-Identifier: BSD-3-Clause
#include "group/streamed.h"

#include <cohort/completion.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include <utility>

namespace cohort {

using detail::Issue;
using detail::Operation;

namespace {

/// Holds the operation's memory and its group, and tells recorder, hooks and Work how it ended.
class Streamed final : public Ending {
 public:
  Streamed(std::shared_ptr<ProcessGroup::State> state, std::shared_ptr<detail::WorkState> work)
      : state_(std::move(state)), work_(std::move(work)) {}

  /// The recorder has it start now: when the device begins is not known.
  void begin(std::uint64_t sequence, std::chrono::milliseconds timeout) {
    record_.emplace(*state_, work_->operation().get(), sequence, timeout, true);
  }
  void ended(std::exception_ptr error) noexcept override {
    if (has_ended_.exchange(true)) return;
    try {
      if (record_) error ? record_->failed(error) : record_->succeeded();
      const auto& operation = work_->operation().get();
      const int source = operation.type == OpType::recv ? operation.root_or_peer : -1;
      error ? work_->fail(error) : work_->succeed(source);
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("the end of an operation of group {} was lost: {}", state_->id, e.what()));
    }
  }

 private:
  std::shared_ptr<ProcessGroup::State> state_;
  std::shared_ptr<detail::WorkState> work_;
  std::optional<OpRecord> record_;
  std::atomic<bool> has_ended_{false};
};

void check(const Backend& backend, const Operation& operation) {
  for (const auto& member : operation.members) check(backend, member);
  backend.check_request({.op = operation.type,
                         .dtype = operation.dtype,
                         .reduce = operation.reduce,
                         .tag = operation.tag,
                         .inputs = operation.inputs,
                         .outputs = operation.outputs});
}

bool consists_of_p2p(const Operation& operation) {
  return is_p2p(operation.type) || (!operation.members.empty() && is_p2p(operation.members.front().type));
}

/// Runs `fn(sequence)` on this thread, or, where others are queued, on the collectives's.
template <class Fn>
void in_turn(CollectiveQueue& collectives, Fn&& fn) {
  if (const auto sequence = collectives.try_enter()) {
    const QueueTurn held(collectives);
    return fn(*sequence);
  }
  Promise<void> done;
  collectives.enqueue([&](std::uint64_t sequence) {
    try {
      fn(sequence);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.future().value();
}

}  // namespace

Work run_on_stream(const std::shared_ptr<ProcessGroup::State>& state, Backend& backend, const Operation& operation,
                   const Issue& issue) {
  check(backend, operation);
  const auto timeout = state->timeout_of(issue);
  const auto deadline = Deadline::after(timeout);
  const auto work = std::make_shared<detail::WorkState>(operation, state->continuations);
  const auto streamed = std::make_shared<Streamed>(state, work);
  OnStream on{.stream = issue.stream, .is_async = issue.async_op, .ending = streamed};
  const bool is_p2p_only = consists_of_p2p(operation);
  std::uint64_t number = 0;
  const auto enqueue = [&](std::uint64_t sequence) {
    number = sequence;
    streamed->begin(sequence, timeout);
    Call call(operation.type, sequence, deadline);
    call.set_timeout(timeout);
    if (state->debug == DebugLevel::detail && !is_p2p_only) compare_fingerprints(backend, operation, call);
    call.set_on_stream(on);
    detail::perform(backend, operation, call);
  };
  try {
    if (is_p2p_only) {
      enqueue(state->p2p_sequence.fetch_add(1, std::memory_order_relaxed) + 1);
    } else {
      in_turn(state->collectives, enqueue);
    }
  } catch (...) {
    streamed->ended(std::current_exception());
    if (!issue.async_op) throw;
  }
  if (on.completion == nullptr) {
    streamed->ended(nullptr);
  } else {
    work->set_completion(std::move(on.completion), issue.stream);
  }
  // On the user's own stream the memory is the stream's already; beside it nobody else knows of it.
  const bool is_borrowed = issue.async_op && work->operation().is_borrowed();
  auto handle = WorkAccess::enqueued(operation.type, number, work, is_borrowed);
  if (operation.type == OpType::barrier && !issue.async_op) handle.wait();
  return handle;
}

}  // namespace cohort
