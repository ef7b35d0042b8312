// SPDX-License-Identifier: BSD-3-Clause
//
// The two ways an operation on host memory runs: collectives one after another, point-to-point operations independently
// of them and of each other. streamed.cpp has those on device memory.
#include "group/submit.h"

#include <cohort/error.h>
#include <cohort/process_group.h>

#include <cstring>
#include <latch>
#include <optional>
#include <utility>

#include "group/issue_notifier.h"
#include "group/mismatch.h"
#include "group/perform.h"
#include "group/process_group_state.h"
#include "group/streamed.h"
#include "group/user_reduction.h"
#include "reduce/kernels.h"

namespace cohort {

using detail::perform;
using detail::SubmitOptions;

std::size_t detail::payload_bytes(const Operation& op) {
  std::size_t bytes = 0;
  for (const auto& member : op.members) bytes += payload_bytes(member);
  for (const auto& in : op.ins) bytes += in.size();
  if (op.ins.empty()) {
    for (const auto& out : op.outs) bytes += out.size();
  }
  return bytes;
}

namespace {

/// An all-reduce of several buffers per rank: they are first combined in order, and the result is finally copied to all
/// of them.
void all_reduce_list(Backend& backend, const Operation& op, Call& call) {
  const auto first = op.out();
  std::vector<const void*> sources;
  for (const auto& each : op.ins) sources.push_back(each.data());
  const std::vector<double> factors(sources.size(), 1.0);
  void* const output = first.data();
  reduce::find_kernel(op.dtype, op.reduce.kind())(
      {.data = sources.data(), .factors = factors.data(), .count = sources.size()}, {.data = &output, .count = 1},
      op.count_of(first), 1);
  auto combined = Operation::all_reduce(first, first, op.dtype, op.reduce);
  combined.layout = op.layout;
  backend.perform(combined, call);
  for (std::size_t i = 1; i < op.outs.size(); ++i) {
    if (!first.empty()) std::memcpy(op.outs[i].data(), first.data(), first.size());
  }
}

}  // namespace

int detail::perform(Backend& backend, const Operation& op, Call& call) {
  if (op.type == OpType::all_reduce && op.outs.size() > 1) [[unlikely]] {
    all_reduce_list(backend, op, call);
    return -1;
  }
  if (op.reduce.user() != nullptr) [[unlikely]] {
    reduce_with_user_function(backend, op, call);
    return -1;
  }
  return backend.perform(op, call);
}

namespace {

/// The record of a blocking operation. It is begun before the operation, or, where the backend says when it waits,
/// while the peers' answers are on their way. An operation that did not wait is recorded as a whole, when it has ended.
/// Hooks are called before the operation in any case.
class BlockingRecord final : public OnWait {
 public:
  BlockingRecord(detail::GroupState& state, const Backend& backend, const Operation& op, Call& call)
      : op_(op), call_(call), record_(state) {
    if (backend.says_when_it_waits() && !state.has_hooks.load(std::memory_order_relaxed)) {
      call.set_on_wait(this);
    } else {
      begin(OpRecord::Start::now);
    }
  }
  BlockingRecord(const BlockingRecord&) = delete;
  BlockingRecord& operator=(const BlockingRecord&) = delete;

  void waits() noexcept override { begin(OpRecord::Start::now); }
  void succeeded() {
    if (is_begun_) return record_.succeeded();
    begin(OpRecord::Start::now_and_ends);
  }
  void failed(const std::exception_ptr& error) {
    call_.waits();
    record_.failed(error);
  }

 private:
  void begin(OpRecord::Start start) {
    is_begun_ = true;
    record_.begin(op_, call_.sequence(), call_.timeout(), start);
  }

  const Operation& op_;
  Call& call_;
  bool is_begun_ = false;
  OpRecord record_;
};

template <class Record>
int run(detail::GroupState& state, Backend& backend, const Operation& op, Call& call, Record& record) {
  try {
    if (state.debug == DebugLevel::detail && !is_p2p(op.type)) compare_on_all_ranks(backend, op, call);
    const int source = perform(backend, op, call);
    state.check_not_aborted(call);
    record.succeeded();
    return source;
  } catch (...) {
    const auto error = state.how_it_ended(std::current_exception(), call);
    record.failed(error);
    std::rethrow_exception(error);
  }
}

Work run_blocking(detail::GroupState& state, Backend& backend, const Operation& op, std::uint64_t sequence,
                  std::chrono::milliseconds timeout) {
  Call call(op.type, sequence, timeout);
  BlockingRecord record(state, backend, op, call);
  const int source = run(state, backend, op, call, record);
  return WorkAccess::completed(op, sequence, source);
}

Work run_p2p(const std::shared_ptr<detail::GroupState>& shared, Backend& backend, const Operation& op,
             const SubmitOptions& options) {
  auto& state = *shared;
  const auto sequence = state.p2p_sequence.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto timeout = state.timeout_of(options);
  if (!options.async_op) return run_blocking(state, backend, op, sequence, timeout);
  Call call(op.type, sequence, Deadline::after(timeout), timeout);
  const auto work = std::make_shared<detail::WorkState>(op, state.continuations);
  const auto record = std::make_shared<OpRecord>(state, op, sequence, timeout, OpRecord::Start::now);
  const auto end = [shared, work, record, call](int source, const std::exception_ptr& result) {
    const auto error = shared->how_it_ended(result, call);
    error ? record->failed(error) : record->succeeded();
    error ? work->fail(error) : work->succeed(source);
  };
  const int peer = op.peer;
  try {
    auto transfer = op.type == OpType::send ? backend.start_send(op, call) : backend.start_recv(op, call);
    if (transfer->advance()) {
      const int source = transfer->source();
      transfer.reset();
      end(source, nullptr);
    } else {
      auto context = state.context(op.type);
      context.sequence = sequence;
      if (peer >= 0) context.rank = peer;
      // `end` keeps the work alive. Pointers alone need no allocation.
      const auto is_awaited = [future = work->future().get(), batch = options.batch] {
        return future->is_awaited() || (batch != nullptr && batch->future()->is_awaited());
      };
      state.p2p_progress.add(state.shared_backend(backend), std::move(transfer), call, std::move(context), is_awaited,
                             end);
    }
  } catch (...) {
    end(-1, std::current_exception());  // every error is reported through the Work
  }
  return WorkAccess::pending(op.type, sequence, work);
}

Work issue(const std::shared_ptr<detail::GroupState>& shared, const Operation& op, const SubmitOptions& options) {
  auto& state = *shared;
  state.check_open(op.type);
  auto& backend = state.backend_for(options, op.type);
  if (op.reduce.user() != nullptr) [[unlikely]]
    check_user_reductions(backend, op);
  if (backend.is_stream_ordered()) return run_on_stream(shared, backend, op, options);
  if (is_p2p(op.type)) return run_p2p(shared, backend, op, options);
  const auto timeout = state.timeout_of(options);
  if (!options.async_op) {
    if (const auto sequence = state.collectives.try_enter()) {
      const QueueTurn held(state.collectives);
      return run_blocking(state, backend, op, *sequence, timeout);
    }
  }
  // The operation gets its number when it is queued, and only then can it be recorded and passed to the hooks. The
  // queued task waits until that has been done.
  struct Queued {
    std::optional<OpRecord> record{};
    std::latch is_recorded{1};
  };
  const auto queued = std::make_shared<Queued>();
  const auto work = std::make_shared<detail::WorkState>(op, state.continuations);
  work->set_queue(state.collectives.helper());
  const auto deadline = Deadline::after(timeout);
  const auto sequence =
      state.collectives.enqueue([shared, &backend, work, queued, deadline, timeout](std::uint64_t number) {
        queued->is_recorded.wait();
        queued->record->started();
        Call call(work->operation().get().type, number, deadline, timeout);
        try {
          run(*shared, backend, work->operation().get(), call, *queued->record);
        } catch (...) {
          work->fail(std::current_exception());
          return;
        }
        work->succeed(-1);
      });
  queued->record.emplace(state, op, sequence, timeout, OpRecord::Start::later);
  queued->is_recorded.count_down();
  auto handle = WorkAccess::pending(op.type, sequence, work);
  if (!options.async_op) handle.wait();
  return handle;
}

}  // namespace

Work ProcessGroup::submit(const Operation& op, const SubmitOptions& options) {
  auto work = issue(state_, op, options);
  if (IssueNotifier::is_observed()) [[unlikely]] {
    IssueNotifier::notify({.group = *this,
                           .op = op,
                           .options = {.async_op = options.async_op,
                                       .timeout = options.timeout,
                                       .device = options.device,
                                       .stream = options.stream},
                           .work = work});
  }
  return work;
}

Work issue_again(ProcessGroup& group, const Operation& op, const IssueOptions& options) {
  return GroupAccess::submit(
      group, op,
      {.device = options.device, .async_op = options.async_op, .timeout = options.timeout, .stream = options.stream});
}

void detail::GroupState::run_in_turn(OpType op, Timeout given, const std::function<void(Backend&, Call&)>& fn) {
  check_open(op);
  const SubmitOptions options{.timeout = given};
  auto& backend = backend_for(options, op);
  const auto time = timeout_of(options);
  const auto deadline = Deadline::after(time);
  in_turn([&](std::uint64_t sequence) {
    Call call(op, sequence, deadline, time);
    OpRecord record(*this, {.type = op}, sequence, time, OpRecord::Start::now);
    try {
      fn(backend, call);
      check_not_aborted(call);
      record.succeeded();
    } catch (...) {
      const auto error = how_it_ended(std::current_exception(), call);
      record.failed(error);
      std::rethrow_exception(error);
    }
  });
}

}  // namespace cohort
