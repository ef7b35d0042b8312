// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/flight_recorder.h>
#include <cohort/log.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "group/group_ids.h"
#include "group/process_group_state.h"

namespace cohort {

using detail::Issue;
using detail::Operation;

std::uint32_t fork_generation() noexcept {
  static std::atomic<std::uint32_t> generation{0};
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

// --- state
// ------------------------------------------------------------------------------------------------------------

void ProcessGroup::State::check_open(OpType op) const {
  if (const auto* const why = closed.load(std::memory_order_acquire)) throw AbortedError(why, context(op));
  if (generation != fork_generation()) {
    throw Error("the group belongs to the parent process: make another one after fork()", context(op));
  }
}

Backend& ProcessGroup::State::backend_for(const Issue& issue, OpType op) const {
  auto* const found = issue.device ? fast[static_cast<std::size_t>(*issue.device)].load(std::memory_order_acquire)
                                   : fast_default.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  std::vector<std::string_view> known;
  for (std::size_t i = 0; i < device_types; ++i) {
    if (fast[i].load() != nullptr) known.push_back(to_string(static_cast<DeviceType>(i)));
  }
  throw Error(fmt::format("{}: the group has no backend for {}; it has {}", to_string(op),
                          issue.device ? to_string(*issue.device) : "any device",
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

Occasion::Occasion(ProcessGroup::State& state, const Operation& operation, std::uint64_t sequence,
                   std::chrono::milliseconds timeout, bool starts_now)
    : state_(state),
      trace_(state.fast_trace.load(std::memory_order_acquire)),
      has_hooks_(state.has_hooks.load(std::memory_order_acquire)) {
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
  if (!has_hooks_) return;
  event_ = {.op = operation.type, .sequence = sequence, .group = state.id, .bytes = bytes_of(operation)};
  event_.started = std::chrono::steady_clock::now();
  std::vector<Hook> hooks;
  {
    const std::lock_guard lock(state_.mutex);
    hooks = state_.pre_hooks;
  }
  run_hooks(hooks);
}

void Occasion::started() {
  if (trace_ != nullptr) trace_->started(record_);
}

void Occasion::succeeded() {
  if (trace_ != nullptr) trace_->completed(record_);
  if (has_hooks_) finish(nullptr);
}

void Occasion::failed(const std::exception_ptr& error) {
  if (trace_ != nullptr) trace_->failed(record_);
  if (has_hooks_) finish(error);
  if (state_.has_dumped.exchange(true)) return;
  try {
    std::rethrow_exception(error);
  } catch (const BackendError& e) {
    FlightRecorder::dump(e.what());
  } catch (...) {
    state_.has_dumped = false;  // the arguments, not the group
  }
}

void Occasion::finish(const std::exception_ptr& error) {
  event_.finished = std::chrono::steady_clock::now();
  event_.duration = event_.finished - event_.started;
  event_.error = error;
  std::vector<Hook> hooks;
  {
    const std::lock_guard lock(state_.mutex);
    hooks = state_.post_hooks;
  }
  run_hooks(hooks);
}

void Occasion::run_hooks(const std::vector<Hook>& hooks) {
  for (const auto& hook : hooks) {
    try {
      hook(event_);
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("a hook of group {} threw: {}", state_.id, e.what()));
    }
  }
}

// --- construction and accessors
// ---------------------------------------------------------------------------------------

ProcessGroup::ProcessGroup(StorePtr store, int rank, int size, std::chrono::milliseconds timeout, std::string id)
    : Operations(rank, size), state_(std::make_unique<State>()) {
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
    // The threads are the parent's; there is nothing here to wait for.
    static_cast<void>(state_.release());
  }
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
  state_->trace = std::make_unique<observe::GroupTrace>(observe::GroupInfo{.id = state_->id,
                                                                           .name = state_->name,
                                                                           .description = state_->description,
                                                                           .backend = place->name(),
                                                                           .global_ranks = state_->global_ranks,
                                                                           .rank = rank_,
                                                                           .size = size_});
  state_->fast_trace.store(state_->trace.get(), std::memory_order_release);
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
  return state_->lane.last_sequence();
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
int run(ProcessGroup::State& state, Backend& backend, const Operation& operation, Call& call, Occasion& occasion) {
  try {
    if (state.debug == DebugLevel::detail && !is_p2p(operation.type)) compare_fingerprints(backend, operation, call);
    const int source = perform(backend, operation, call);
    occasion.succeeded();
    return source;
  } catch (...) {
    occasion.failed(std::current_exception());
    throw;
  }
}

/// Counts a blocking send or receive while it is in the backend, so that the backend is not released under it.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { count_.fetch_add(1, std::memory_order_acquire); }
  ~Counted() { count_.fetch_sub(1, std::memory_order_release); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

Work run_p2p(ProcessGroup::State& state, Backend& backend, const Operation& operation, const Issue& issue) {
  const auto sequence = state.p2p_sequence.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto timeout = state.timeout_of(issue);
  if (!issue.async_op) {
    const Counted counted(state.blocking_p2p);
    state.check_open(operation.type);
    Call call(operation.type, sequence, timeout);
    Occasion occasion(state, operation, sequence, timeout, true);
    const int source = run(state, backend, operation, call, occasion);
    return WorkAccess::completed(operation, sequence, source);
  }
  Call call(operation.type, sequence, Deadline::after(timeout));
  call.set_timeout(timeout);
  const auto work = std::make_shared<detail::WorkState>(operation, state.continuations);
  const auto occasion = std::make_shared<Occasion>(state, operation, sequence, timeout, true);
  std::unique_ptr<Transfer> transfer;
  try {
    transfer = operation.type == OpType::send
                   ? backend.start_send(operation.ins[0], operation.root_or_peer, operation.tag, call)
                   : backend.start_recv(operation.outs[0], operation.root_or_peer, operation.tag, call);
    if (transfer->advance()) {
      const int source = transfer->source();
      transfer.reset();
      occasion->succeeded();
      return WorkAccess::completed(operation, sequence, source);
    }
  } catch (...) {
    occasion->failed(std::current_exception());
    throw;
  }
  auto handle = WorkAccess::pending(operation.type, sequence, work);
  state.courier.add(state.shared_backend(backend), std::move(transfer), call,
                    [work, occasion](int source, const std::exception_ptr& error) {
                      error ? occasion->failed(error) : occasion->succeeded();
                      error ? work->fail(error) : work->succeed(source);
                    });
  return handle;
}

}  // namespace

Work ProcessGroup::submit(Operation& operation, const Issue& issue) {
  auto& state = *state_;
  state.check_open(operation.type);
  auto& backend = state.backend_for(issue, operation.type);
  if (is_p2p(operation.type)) return run_p2p(state, backend, operation, issue);
  const auto timeout = state.timeout_of(issue);
  if (!issue.async_op) {
    if (const auto sequence = state.lane.try_enter()) {
      struct Turn {
        Lane& lane;
        ~Turn() { lane.leave(); }
      } turn{state.lane};
      Call call(operation.type, *sequence, timeout);
      Occasion occasion(state, operation, *sequence, timeout, true);
      run(state, backend, operation, call, occasion);
      return WorkAccess::completed(operation, *sequence, -1);
    }
  }
  const auto work = std::make_shared<detail::WorkState>(operation, state.continuations);
  const auto deadline = Deadline::after(timeout);
  const auto sequence = state.lane.enqueue([&state, &backend, work, deadline, timeout](std::uint64_t number) {
    Call call(work->operation().get().type, number, deadline);
    call.set_timeout(timeout);
    Occasion occasion(state, work->operation().get(), number, timeout, true);
    try {
      run(state, backend, work->operation().get(), call, occasion);
    } catch (...) {
      work->fail(std::current_exception());
      return;
    }
    work->succeed(-1);
  });
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
    Occasion occasion(*this, operation, sequence, time, true);
    try {
      fn(backend, call);
      occasion.succeeded();
    } catch (...) {
      occasion.failed(std::current_exception());
      throw;
    }
  };
  const auto deadline = Deadline::after(time);
  if (const auto sequence = lane.try_enter()) {
    struct Turn {
      Lane& lane;
      ~Turn() { lane.leave(); }
    } turn{lane};
    return body(*sequence, deadline);
  }
  Promise<void> done;
  lane.enqueue([&](std::uint64_t sequence) {
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
  if (state_->lane.is_own_thread()) throw Error("wait_for_pending: called by an operation of the group itself");
  state_->lane.wait_until_idle();
  state_->courier.wait_until_idle();
}

void ProcessGroup::shutdown() {
  const char* open = nullptr;
  if (!state_->closed.compare_exchange_strong(open, "the group was shut down")) return;
  wait_for_pending();
  for (const auto& backend : state_->distinct_backends()) backend->shutdown();
}

void ProcessGroup::abort(std::string_view reason) {
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
    }
  }
}

void ProcessGroup::release_resources() {
  const char* open = nullptr;
  state_->closed.compare_exchange_strong(open, "the group was released");
  wait_for_pending();
  while (state_->blocking_p2p.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  for (auto& fast : state_->fast) fast = nullptr;
  state_->fast_default = nullptr;
  const std::lock_guard lock(state_->mutex);
  state_->store.reset();
  state_->backends = {};
  state_->default_type.reset();
}

GroupMemory ProcessGroup::allocate(std::size_t bytes) {
  state_->check_open(OpType::unknown);
  return default_backend()->allocate(bytes);
}

}  // namespace cohort
