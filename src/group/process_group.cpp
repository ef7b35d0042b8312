// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/flight_recorder.h>
#include <cohort/log.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <optional>
#include <utility>

#include "core/immortal.h"
#include "group/group_ids.h"
#include "group/process_group_state.h"
#include "group/streamed.h"

namespace cohort {

using detail::Issue;
using detail::Operation;

std::uint32_t fork_generation() noexcept {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

// --- state
// ------------------------------------------------------------------------------------------------------------

void ProcessGroup::State::refuse(OpType op) const {
  check_process(to_string(op));
  std::string why = closed.load(std::memory_order_acquire);
  {
    const std::lock_guard lock(mutex);
    if (!abort_reason.empty()) why += ": " + abort_reason;
  }
  throw AbortedError(why, context(op));
}

void ProcessGroup::State::check_process(std::string_view what) const {
  if (generation == fork_generation()) return;
  throw Error("the group belongs to the parent process: make another one after fork()",
              {.group = id, .op = std::string(what)});
}

void ProcessGroup::State::add_trace(int rank, int size, const std::string& backend) {
  trace = std::make_unique<observe::GroupTrace>(observe::GroupInfo{.id = id,
                                                                   .name = name,
                                                                   .description = description,
                                                                   .backend = backend,
                                                                   .global_ranks = global_ranks,
                                                                   .rank = rank,
                                                                   .size = size});
  fast_trace.store(trace.get(), std::memory_order_release);
}

bool GroupSetup::has_local_id(const ProcessGroup& group) {
  return group.id().starts_with(local_id_prefix);
}

void GroupSetup::set_id(ProcessGroup& group, const std::string& id) {
  auto& state = *group.state_;
  const std::lock_guard lock(state.mutex);
  state.id = id;
  if (state.default_type) {
    state.add_trace(group.rank(), group.size(), state.backends[static_cast<std::size_t>(*state.default_type)]->name());
  }
}

void GroupSetup::set_global_ranks(ProcessGroup& group, std::vector<int> ranks) {
  group.state_->global_ranks = std::move(ranks);
}

void ProcessGroup::State::refuse_device(const Issue& issue, OpType op) const {
  std::vector<std::string_view> known;
  for (std::size_t i = 0; i < device_types; ++i) {
    if (fast[i].load() != nullptr) known.push_back(to_string(static_cast<DeviceType>(i)));
  }
  throw Error(
      fmt::format("the group has no backend for {}; it has {}", issue.device ? to_string(*issue.device) : "any device",
                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))),
      context(op));
}

BackendPtr ProcessGroup::State::shared_backend(const Backend& backend) const {
  const std::lock_guard lock(mutex);
  for (const auto& each : backends) {
    if (each.get() == &backend) return each;
  }
  throw Error("the group was released");
}

std::vector<BackendPtr> ProcessGroup::State::distinct_backends() const {
  const std::lock_guard lock(mutex);
  std::vector<BackendPtr> all;
  for (const auto& each : backends) {
    if (each != nullptr && std::find(all.begin(), all.end(), each) == all.end()) all.push_back(each);
  }
  return all;
}

// --- what surrounds an operation
// --------------------------------------------------------------------------------------

OpRecord::OpRecord(ProcessGroup::State& state, const Operation& operation, std::uint64_t sequence,
                   std::chrono::milliseconds timeout, bool starts_now)
    : state_(state), trace_(state.fast_trace.load(std::memory_order_acquire)) {
  if (trace_ != nullptr) {
    const bool p2p = is_p2p(operation.type);
    record_ = trace_->begin({.op = to_string(operation.type).data(),
                             .is_p2p = p2p,
                             .starts_at_once = starts_now,
                             .collective_sequence = p2p ? 0 : static_cast<std::int64_t>(sequence),
                             .p2p_sequence = p2p ? static_cast<std::int64_t>(sequence) : 0,
                             .op_id = static_cast<std::int64_t>(sequence),
                             .input = observe::Shape::of_all(operation.inputs),
                             .output = observe::Shape::of_all(operation.outputs),
                             .timeout_ms = timeout.count(),
                             .peer = p2p ? operation.root_or_peer : -1});
  }
  if (!state.has_hooks.load(std::memory_order_acquire)) return;
  event_ = HookEvent{.op = operation.type,
                     .sequence = sequence,
                     .group = state.id,
                     .bytes = bytes_of(operation),
                     .started = std::chrono::steady_clock::now()};
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
    state_.has_dumped = false;  // the arguments, not the group
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
      log(LogLevel::error, fmt::format("a hook of group {} threw something that is no std::exception", state_.id));
    }
  }
}

// --- construction and accessors
// ---------------------------------------------------------------------------------------

ProcessGroup::ProcessGroup(StorePtr store, int rank, int size, std::chrono::milliseconds timeout, std::string id)
    : Operations(rank, size), state_(std::make_shared<State>()) {
  if (size < 1) throw ValueError(fmt::format("a group of {} ranks", size));
  if (rank < 0 || rank >= size) throw ValueError(fmt::format("rank {} of a group of {}", rank, size));
  state_->store = std::move(store);
  state_->timeout = timeout;
  state_->id = id.empty() ? local_id() : std::move(id);
  state_->global_ranks.resize(static_cast<std::size_t>(size));
  std::iota(state_->global_ranks.begin(), state_->global_ranks.end(), 0);
}

ProcessGroup::~ProcessGroup() {
  forget_group(state_->id, this);
  if (state_->generation != fork_generation()) {
    // The threads are the parent's, and there is nothing here to wait for: left as it is, and never destroyed.
    static Immortal<std::vector<std::shared_ptr<State>>> of_parents;
    of_parents->push_back(std::move(state_));
    return;
  }
  // What is under way holds the state. On one of the group's own threads there is no waiting for it: the last to end
  // takes the state with it.
  if (state_->collectives.is_own_thread() || state_->p2p_progress.is_own_thread()) return;
  state_->collectives.wait_until_idle();
  state_->p2p_progress.wait_until_idle();
  for (const auto& backend : state_->distinct_backends()) backend->drain();
}

std::string ProcessGroup::name() const {
  const auto* const backend = state_->fast_default.load(std::memory_order_acquire);
  return backend == nullptr ? "undefined" : backend->name();
}

const std::string& ProcessGroup::id() const noexcept {
  return state_->id;
}

std::string ProcessGroup::group_name() const {
  const std::lock_guard lock(state_->mutex);
  return state_->name;
}

void ProcessGroup::set_group_name(std::string name) {
  const std::lock_guard lock(state_->mutex);
  if (state_->trace) state_->trace->set_name(name);
  state_->name = std::move(name);
}

std::string ProcessGroup::group_desc() const {
  const std::lock_guard lock(state_->mutex);
  return state_->description;
}

void ProcessGroup::set_group_desc(std::string description) {
  const std::lock_guard lock(state_->mutex);
  if (state_->trace) state_->trace->set_description(description);
  state_->description = std::move(description);
}

StorePtr ProcessGroup::store() const {
  const std::lock_guard lock(state_->mutex);
  return state_->store;
}

const std::vector<int>& ProcessGroup::global_ranks() const noexcept {
  return state_->global_ranks;
}

void ProcessGroup::add_backend(DeviceType type, BackendPtr backend) {
  if (backend == nullptr) throw ValueError("add_backend: the backend is null");
  if (backend->rank() != rank_ || backend->size() != size_) {
    throw ValueError(fmt::format("add_backend: the backend is rank {} of {}, the group rank {} of {}", backend->rank(),
                                 backend->size(), rank_, size_));
  }
  const std::lock_guard lock(state_->mutex);
  auto& place = state_->backends[static_cast<std::size_t>(type)];
  if (place != nullptr)
    throw Error(fmt::format("the group has a backend for {} already: {}", to_string(type), place->name()));
  place = std::move(backend);
  state_->fast[static_cast<std::size_t>(type)].store(place.get(), std::memory_order_release);
  if (state_->default_type) return;
  state_->default_type = type;
  state_->fast_default.store(place.get(), std::memory_order_release);
  state_->add_trace(rank_, size_, place->name());
}

void ProcessGroup::set_default_backend(DeviceType type) {
  const auto chosen = backend(Device(type));
  const std::lock_guard lock(state_->mutex);
  state_->default_type = type;
  state_->fast_default.store(chosen.get(), std::memory_order_release);
}

BackendPtr ProcessGroup::backend(const Device& device) const {
  return state_->shared_backend(state_->backend_for({.device = device.type}, OpType::unknown));
}

BackendPtr ProcessGroup::default_backend() const {
  return state_->shared_backend(state_->backend_for({}, OpType::unknown));
}

std::vector<DeviceType> ProcessGroup::device_types() const {
  std::vector<DeviceType> types;
  for (std::size_t i = 0; i < State::device_types; ++i) {
    if (state_->fast[i].load(std::memory_order_acquire) != nullptr) types.push_back(static_cast<DeviceType>(i));
  }
  return types;
}

Capabilities ProcessGroup::capabilities(const Device& device) const {
  return backend(device)->capabilities();
}

std::optional<Device> ProcessGroup::bound_device() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bound_device;
}

void ProcessGroup::set_bound_device(std::optional<Device> device) {
  if (device && device->index < 0) {
    throw ValueError(fmt::format("set_bound_device: {} has no index", to_string(*device)));
  }
  const std::lock_guard lock(state_->mutex);
  state_->bound_device = device;
}

std::chrono::milliseconds ProcessGroup::timeout() const noexcept {
  return state_->timeout.load(std::memory_order_relaxed);
}

void ProcessGroup::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) throw ValueError(fmt::format("set_timeout: {} ms", timeout.count()));
  state_->timeout.store(timeout, std::memory_order_relaxed);
}

std::uint64_t ProcessGroup::sequence_number() const {
  return state_->collectives.last_sequence();
}

void ProcessGroup::add_pre_hook(Hook hook) {
  const std::lock_guard lock(state_->mutex);
  state_->pre_hooks.push_back(std::move(hook));
  state_->has_hooks = true;
}

void ProcessGroup::add_post_hook(Hook hook) {
  const std::lock_guard lock(state_->mutex);
  state_->post_hooks.push_back(std::move(hook));
  state_->has_hooks = true;
}

void ProcessGroup::add_abort_hook(std::function<void(std::string_view)> hook) {
  const std::lock_guard lock(state_->mutex);
  state_->abort_hooks.push_back(std::move(hook));
}

// --- running operations
// -----------------------------------------------------------------------------------------------

namespace {

/// Collectives one after another, p2p independently of them and each other: the two ways an operation runs.
int run(ProcessGroup::State& state, Backend& backend, const Operation& operation, Call& call, OpRecord& record) {
  try {
    if (state.debug == DebugLevel::detail && !is_p2p(operation.type)) compare_fingerprints(backend, operation, call);
    const int source = perform(backend, operation, call);
    record.succeeded();
    return source;
  } catch (...) {
    record.failed(std::current_exception());
    throw;
  }
}

Work run_p2p(const std::shared_ptr<ProcessGroup::State>& shared, Backend& backend, const Operation& operation,
             const Issue& issue) {
  auto& state = *shared;
  const auto sequence = state.p2p_sequence.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto timeout = state.timeout_of(issue);
  if (!issue.async_op) {
    Call call(operation.type, sequence, timeout);
    OpRecord record(state, operation, sequence, timeout, true);
    const int source = run(state, backend, operation, call, record);
    return WorkAccess::completed(operation, sequence, source);
  }
  Call call(operation.type, sequence, Deadline::after(timeout));
  call.set_timeout(timeout);
  const auto work = std::make_shared<detail::WorkState>(operation, state.continuations);
  const auto record = std::make_shared<OpRecord>(state, operation, sequence, timeout, true);
  const auto end = [shared, work, record](int source, const std::exception_ptr& error) {
    error ? record->failed(error) : record->succeeded();
    error ? work->fail(error) : work->succeed(source);
  };
  const int peer = operation.root_or_peer;
  try {
    auto transfer = operation.type == OpType::send ? backend.start_send(operation.ins[0], peer, operation.tag, call)
                                                   : backend.start_recv(operation.outs[0], peer, operation.tag, call);
    if (transfer->advance()) {
      const int source = transfer->source();
      transfer.reset();
      end(source, nullptr);
    } else {
      auto context = state.context(operation.type);
      context.sequence = sequence;
      if (peer >= 0) context.rank = peer;
      state.p2p_progress.add(state.shared_backend(backend), std::move(transfer), call, std::move(context), end);
    }
  } catch (...) {
    end(-1, std::current_exception());  // whatever went wrong, the Work tells
  }
  return WorkAccess::pending(operation.type, sequence, work);
}

}  // namespace

Work ProcessGroup::submit(Operation& operation, const Issue& issue) {
  auto& state = *state_;
  state.check_open(operation.type);
  auto& backend = state.backend_for(issue, operation.type);
  if (backend.is_stream_ordered()) return run_on_stream(state_, backend, operation, issue);
  if (is_p2p(operation.type)) return run_p2p(state_, backend, operation, issue);
  const auto timeout = state.timeout_of(issue);
  if (!issue.async_op) {
    if (const auto sequence = state.collectives.try_enter()) {
      const QueueTurn held(state.collectives);
      Call call(operation.type, *sequence, timeout);
      OpRecord record(state, operation, *sequence, timeout, true);
      run(state, backend, operation, call, record);
      return WorkAccess::completed(operation, *sequence, -1);
    }
  }
  // Its number is known once it is queued, and only then can it be recorded and the hooks be told: it waits for that.
  struct Queued {
    std::optional<OpRecord> record{};
    std::latch is_recorded{1};
  };
  const auto queued = std::make_shared<Queued>();
  const auto work = std::make_shared<detail::WorkState>(operation, state.continuations);
  const auto deadline = Deadline::after(timeout);
  const auto sequence =
      state.collectives.enqueue([shared = state_, &backend, work, queued, deadline, timeout](std::uint64_t number) {
        queued->is_recorded.wait();
        queued->record->started();
        Call call(work->operation().get().type, number, deadline);
        call.set_timeout(timeout);
        try {
          run(*shared, backend, work->operation().get(), call, *queued->record);
        } catch (...) {
          work->fail(std::current_exception());
          return;
        }
        work->succeed(-1);
      });
  queued->record.emplace(state, operation, sequence, timeout, false);
  queued->is_recorded.count_down();
  auto handle = WorkAccess::pending(operation.type, sequence, work);
  if (!issue.async_op) handle.wait();
  return handle;
}

void ProcessGroup::State::run_in_turn(OpType op, Timeout given, const std::function<void(Backend&, Call&)>& fn) {
  check_open(op);
  const Operation operation{.type = op};
  const Issue issue{.timeout = given};
  auto& backend = backend_for(issue, op);
  const auto time = timeout_of(issue);
  const auto body = [&](std::uint64_t sequence, Deadline deadline) {
    Call call(op, sequence, deadline);
    call.set_timeout(time);
    OpRecord record(*this, operation, sequence, time, true);
    try {
      fn(backend, call);
      record.succeeded();
    } catch (...) {
      record.failed(std::current_exception());
      throw;
    }
  };
  const auto deadline = Deadline::after(time);
  if (const auto sequence = collectives.try_enter()) {
    const QueueTurn held(collectives);
    return body(*sequence, deadline);
  }
  Promise<void> done;
  collectives.enqueue([&](std::uint64_t sequence) {
    try {
      body(sequence, deadline);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.future().value();
}

// --- ends
// -------------------------------------------------------------------------------------------------------------

void ProcessGroup::wait_for_pending() {
  state_->check_process("wait_for_pending");
  if (state_->collectives.is_own_thread() || state_->p2p_progress.is_own_thread())
    throw Error("wait_for_pending: called by an operation of the group itself");
  state_->collectives.wait_until_idle();
  state_->p2p_progress.wait_until_idle();
  for (const auto& backend : state_->distinct_backends()) backend->drain();
}

void ProcessGroup::shutdown() {
  state_->check_process("shutdown");
  const char* open = nullptr;
  if (!state_->closed.compare_exchange_strong(open, "the group was shut down")) return;
  wait_for_pending();
  for (const auto& backend : state_->distinct_backends()) backend->shutdown();
}

void ProcessGroup::abort(std::string_view reason) {
  state_->check_process("abort");
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed.load() == nullptr) state_->abort_reason = reason;
  }
  for (const auto& backend : state_->distinct_backends()) backend->abort(reason);
  const char* open = nullptr;
  if (!state_->closed.compare_exchange_strong(open, "the group was aborted")) return;
  std::vector<std::function<void(std::string_view)>> hooks;
  {
    const std::lock_guard lock(state_->mutex);
    hooks = state_->abort_hooks;
  }
  for (const auto& hook : hooks) {
    try {
      hook(reason);
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("an abort hook of group {} threw: {}", state_->id, e.what()));
    } catch (...) {
      log(LogLevel::error,
          fmt::format("an abort hook of group {} threw something that is no std::exception", state_->id));
    }
  }
}

void ProcessGroup::release_resources() {
  const char* open = nullptr;
  state_->closed.compare_exchange_strong(open, "the group was released");
  wait_for_pending();
  for (auto& fast : state_->fast) fast = nullptr;
  state_->fast_default = nullptr;
  const std::lock_guard lock(state_->mutex);
  state_->store.reset();
  for (auto& backend : state_->backends) state_->retired.push_back(std::move(backend));
  state_->backends = {};
  state_->default_type.reset();
}

GroupMemory ProcessGroup::allocate(std::size_t bytes) {
  state_->check_open(OpType::unknown);
  return default_backend()->allocate(bytes);
}

}  // namespace cohort
