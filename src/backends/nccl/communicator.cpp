// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/communicator.h"

#include <cohort/log.h>

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/immortal.h"
#include "core/run_with_deadline.h"

namespace cohort::nccl {

using namespace std::chrono_literals;

namespace {

/// How long an end without a deadline may block its caller; if NCCL needs longer, it continues on another thread.
constexpr auto abort_timeout = 5s;

/// A launch takes some microseconds, a connection milliseconds.
void rest(int round) {
  if (round < 200) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(round < 400 ? 20us : 500us);
  }
}

/// Keeps places that NCCL may still write to until the process ends, because no call takes them back.
void keep_for_good(std::unique_ptr<Comm*> place) {
  static std::mutex mutex;
  static Immortal<std::vector<std::unique_ptr<Comm*>>> places;
  const std::lock_guard lock(mutex);
  places->push_back(std::move(place));
}

}  // namespace

Communicator::ChildPlace::~ChildPlace() {
  if (get() == nullptr) keep_for_good(std::move(place_));
}

UniqueId Communicator::new_id(const Engine& engine) {
  UniqueId id;
  const auto result = engine.calls.get_unique_id(&id);
  if (result != Result::success) {
    throw BackendError(fmt::format("ncclGetUniqueId: {}", describe(engine.calls, result, nullptr)));
  }
  return id;
}

CommunicatorPtr Communicator::create(const Engine& engine, const cuda::ContextPtr& context, const Place& place,
                                     const UniqueId& id, Config config, Deadline deadline,
                                     const FailureCheck& failure_check) {
  const cuda::Current current(*context);
  Comm* comm = nullptr;
  auto result = engine.calls.comm_init(&comm, place.size, id, place.rank, &config);
  auto made = std::make_shared<Communicator>(engine, context, place, comm);
  const auto errors = made->context_of("new_group");
  std::optional<Failure> failure;
  if (result == Result::in_progress) {
    result = made->poll(comm, deadline, [&] {
      if (failure_check) failure = failure_check();
      return failure.has_value();
    });
  }
  if (result == Result::success) return made;
  if (!failure && result == Result::in_progress) {
    failure = {.kind = ErrorKind::timeout,
               .text = fmt::format("the {} ranks of the NCCL communicator did not all join in time", place.size)};
  }
  if (!failure) failure = made->failure(result, "ncclCommInitRankConfig", comm);
  const auto error = error_of(*failure, errors);
  made->break_with(error);
  made->abort();
  std::rethrow_exception(error);
}

Communicator::~Communicator() {
  abort();
}

Communicator::Use::Use(Communicator& communicator, Deadline deadline)
    : holder_(communicator.turn_, deadline), comm_(holder_ ? communicator.comm_.load() : nullptr) {}

std::unique_ptr<Communicator::Use> Communicator::use(Deadline deadline, const ErrorContext& context) {
  if (is_broken()) std::rethrow_exception(error());
  auto held = std::make_unique<Use>(*this, deadline);
  if (is_broken()) std::rethrow_exception(error());
  if (!held->is_held()) {
    throw OperationTimeoutError("the communicator was in use by another operation until the deadline", context);
  }
  if (held->get() == nullptr) throw AbortedError("the communicator was destroyed", context);
  return held;
}

std::unique_ptr<Communicator::Use> Communicator::try_use() {
  if (is_broken()) return nullptr;
  auto held = std::make_unique<Use>(*this, Deadline::at(Deadline::Clock::time_point()));
  if (held->get() == nullptr) return nullptr;
  return held;
}

Result Communicator::poll(Comm* comm, Deadline deadline, const std::function<bool()>& is_enough) const {
  for (int round = 0;; ++round) {
    auto state = Result::success;
    const auto result = engine_.calls.comm_get_async_error(comm, &state);
    if (result != Result::success) return result;
    if (state != Result::in_progress || deadline.expired() || is_enough()) return state;
    rest(round);
  }
}

Failure Communicator::failure(Result result, std::string_view what, Comm* comm) const {
  // NCCL reports that a peer is gone, but not which one.
  return {.kind = result == Result::remote_error ? ErrorKind::peer_lost : ErrorKind::backend,
          .text = fmt::format("{}: {}", what, describe(engine_.calls, result, comm))};
}

void Communicator::settle(const Use& use, Result result, std::string_view what, Deadline deadline,
                          const ErrorContext& context) {
  if (result == Result::success) return;
  if (result == Result::in_progress) {
    result = poll(use.get(), deadline, [this] { return is_broken(); });
    if (result == Result::success && !is_broken()) return;
  }
  if (is_broken()) std::rethrow_exception(error());  // aborted during the wait: NCCL's result is meaningless now
  if (result != Result::in_progress) throw_failure(failure(result, what, use.get()), context);
  throw OperationTimeoutError(fmt::format("{} did not reach the device in time: a peer has not joined", what), context);
}

std::optional<Failure> Communicator::async_failure(const Use& use) const {
  auto state = Result::success;
  const auto result = engine_.calls.comm_get_async_error(use.get(), &state);
  const auto found = result == Result::success ? state : result;
  if (found == Result::success || found == Result::in_progress) return std::nullopt;
  return failure(found, "NCCL", use.get());
}

std::exception_ptr Communicator::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Communicator::break_with(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) return;
  error_ = std::move(error);
  is_broken_.store(true, std::memory_order_release);
}

Comm* Communicator::release() {
  return comm_.exchange(nullptr);
}

void Communicator::abort() noexcept {
  if (comm_.load() == nullptr) return;
  try {
    abort_apart();
  } catch (const std::exception& e) {
    // It stays broken and keeps what it holds: there was no thread or memory left with which to end it.
    log(LogLevel::error,
        fmt::format("group {}: an NCCL communicator could not be aborted: {}", place_.group, e.what()));
  }
}

void Communicator::abort_apart() {
  break_with(std::make_exception_ptr(AbortedError("the communicator was aborted", {.group = place_.group})));
  // A thread that polls leaves at once. One that is stuck inside NCCL (on a full launch queue) is freed only by the
  // abort, and finds the communicator broken when it returns.
  const TimedLock held(turn_, Deadline::after(1s));
  auto* const comm = release();
  if (comm == nullptr) return;
  const auto body = [&engine = engine_, context = context_, comm] {
    const cuda::Current current(*context);
    engine.calls.comm_abort(comm);
  };
  if (!run_with_deadline(body, Deadline::after(abort_timeout))) {
    log(LogLevel::warn,
        fmt::format("group {}: ncclCommAbort takes long and continues on another thread", place_.group));
  }
}

void Communicator::destroy(Deadline deadline) {
  if (is_broken()) return abort();
  const TimedLock held(turn_, deadline);
  auto* const comm = release();
  if (comm == nullptr) return;
  break_with(std::make_exception_ptr(AbortedError("the communicator was destroyed", {.group = place_.group})));
  const auto body = [&engine = engine_, context = context_, comm, deadline] {
    const cuda::Current current(*context);
    auto state = engine.calls.comm_finalize(comm);
    for (int round = 0; state == Result::in_progress && !deadline.expired(); ++round) {
      if (engine.calls.comm_get_async_error(comm, &state) != Result::success) break;
      if (state == Result::in_progress) rest(round);
    }
    state == Result::success ? engine.calls.comm_destroy(comm) : engine.calls.comm_abort(comm);
  };
  run_with_deadline(body, Deadline::at(std::max(deadline.when(), Deadline::after(1s).when())));
}

Comm* Communicator::await_child(const ChildPlace& place, Deadline deadline, const std::function<bool()>& is_enough) {
  for (int round = 0; !deadline.expired(); ++round) {
    if (auto* const child = place.get()) return child;
    if (is_enough()) break;
    rest(round);
  }
  return place.get();
}

CommunicatorPtr Communicator::split(int color, const Place& place, Config config, Deadline deadline) {
  const auto errors = context_of("split_group");
  const auto held = use(deadline, errors);
  const cuda::Current current(*context_);
  ChildPlace child;
  auto result = engine_.calls.comm_split(held->get(), color, place.rank, child.address(), &config);
  // NCCL returns success too early: a non-blocking parent is busy for a while, which its state shows when queried.
  if (result == Result::success) result = Result::in_progress;
  settle(*held, result, "ncclCommSplit", deadline, errors);
  if (color < 0) return nullptr;
  auto* const comm = await_child(child, deadline, [&] { return is_broken() || async_failure(*held).has_value(); });
  if (comm == nullptr) {
    if (is_broken()) std::rethrow_exception(error());
    if (const auto failure = async_failure(*held)) throw_failure(*failure, errors);
    throw OperationTimeoutError("ncclCommSplit: the other ranks did not all join in time", errors);
  }
  auto made = std::make_shared<Communicator>(engine_, context_, place, comm);
  const auto in_use = made->use(deadline, errors);
  made->settle(*in_use, Result::in_progress, "ncclCommSplit", deadline, errors);
  return made;
}

CommunicatorPtr Communicator::shrink(std::span<const int> excluded, const Place& place, Config config,
                                     Deadline deadline) {
  const auto errors = context_of("shrink");
  const TimedLock held(turn_, deadline);
  if (!held) throw OperationTimeoutError("the communicator was in use until the deadline", errors);
  auto* const parent = comm_.load();
  if (parent == nullptr) throw AbortedError("the communicator is gone already: make a new group", errors);
  const cuda::Current current(*context_);
  std::vector<int> out(excluded.begin(), excluded.end());
  ChildPlace child;
  const auto result = engine_.calls.comm_shrink(parent, out.data(), static_cast<int>(out.size()), child.address(),
                                                &config, shrink_abort);
  if (result != Result::success && result != Result::in_progress) {
    throw_failure(failure(result, "ncclCommShrink", parent), errors);
  }
  // An error of the parent may be the very reason for shrinking it. Only the child shows whether this call succeeds,
  // once the parent is no longer busy.
  poll(parent, deadline, [] { return false; });
  auto* const comm = await_child(child, deadline, [] { return false; });
  if (comm == nullptr) throw OperationTimeoutError("shrink: the other survivors did not all join in time", errors);
  auto made = std::make_shared<Communicator>(engine_, context_, place, comm);
  const auto in_use = made->use(deadline, errors);
  made->settle(*in_use, Result::in_progress, "ncclCommShrink", deadline, errors);
  return made;
}

}  // namespace cohort::nccl
