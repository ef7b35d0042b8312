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
#include <optional>
#include <utility>

#include "core/abort_text.h"
#include "core/immortal.h"
#include "core/rank_index.h"
#include "group/group_ids.h"
#include "group/process_group_state.h"
#include "group/user_reduction.h"

namespace cohort {

std::uint32_t fork_generation() noexcept {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

// --- state

void detail::GroupState::refuse(OpType op) const {
  check_process(to_string(op));
  if (is_aborted.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex);
    throw AbortedError(abort_text(own_rank, abort_reason), context(op));
  }
  throw AbortedError(closed.load(std::memory_order_acquire), context(op));
}

std::exception_ptr detail::GroupState::how_it_ended(const std::exception_ptr& error, const Call& call) const {
  if (!is_aborted.load(std::memory_order_acquire)) return error;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const AbortedError&) {
    return error;
  } catch (const BackendError&) {
    // replaced below
  } catch (...) {
    return error;
  }
  std::string reason;
  {
    const std::lock_guard lock(mutex);
    reason = abort_reason;
  }
  auto where = context(call.op());
  where.sequence = call.sequence();
  where.rank = own_rank;
  where.cause = error;
  return std::make_exception_ptr(AbortedError(abort_text(own_rank, reason), std::move(where)));
}

void detail::GroupState::check_process(std::string_view what) const {
  if (generation == fork_generation()) return;
  throw Error("the group belongs to the parent process: make another one after fork()",
              {.group = id, .op = std::string(what)});
}

bool detail::GroupState::await_pending(Deadline deadline) {
  bool have_ended = collectives.wait_until_idle(deadline) && p2p_progress.wait_until_idle(deadline);
  for (const auto& backend : distinct_backends()) have_ended = have_ended && backend->drain(deadline);
  return have_ended;
}

void detail::GroupState::wait_for_pending(std::string_view what, std::chrono::milliseconds limit) {
  check_process(what);
  if (collectives.is_own_thread() || p2p_progress.is_own_thread()) {
    throw Error(fmt::format("{}: called by an operation of the group itself", what));
  }
  if (await_pending(Deadline::after(limit))) return;
  throw OperationTimeoutError(
      fmt::format("{} gave up after {} ms: operations of this rank are still under way", what, limit.count()),
      {.group = id, .op = std::string(what)});
}

void detail::GroupState::add_trace(int rank, int size, const std::string& backend) {
  trace = std::make_unique<observe::GroupTrace>(observe::GroupInfo{.id = id,
                                                                   .name = name,
                                                                   .description = description,
                                                                   .backend = backend,
                                                                   .global_ranks = global_ranks,
                                                                   .rank = rank,
                                                                   .size = size});
  fast_trace.store(trace.get(), std::memory_order_release);
}

bool GroupAccess::has_local_id(const ProcessGroup& group) {
  return group.id().starts_with(local_id_prefix);
}

void GroupAccess::set_id(ProcessGroup& group, const std::string& id) {
  auto& state = *group.state_;
  const std::lock_guard lock(state.mutex);
  state.id = id;
  if (state.default_type) {
    state.add_trace(group.rank(), group.size(), state.backends[static_cast<std::size_t>(*state.default_type)]->name());
  }
}

void GroupAccess::set_global_ranks(ProcessGroup& group, std::vector<int> ranks) {
  group.state_->global_ranks = std::move(ranks);
}

void GroupAccess::set_recipe(ProcessGroup& group, std::shared_ptr<const GroupRecipe> recipe) {
  const std::lock_guard lock(group.state_->mutex);
  group.state_->recipe = std::move(recipe);
}

void GroupAccess::inherit(const ProcessGroupPtr& heir, const ProcessGroup& older, std::vector<int> global_ranks) {
  set_global_ranks(*heir, std::move(global_ranks));
  heir->set_timeout(older.timeout());
  heir->set_group_name(older.group_name());
  heir->set_group_desc(older.group_desc());
  set_recipe(*heir, older.state_->recipe);
  remember_group(heir->id(), heir);
}

void detail::GroupState::refuse_device(const detail::SubmitOptions& options, OpType op) const {
  std::vector<std::string_view> known;
  for (std::size_t i = 0; i < device_types; ++i) {
    if (fast[i].load() != nullptr) known.push_back(to_string(static_cast<DeviceType>(i)));
  }
  throw Error(fmt::format("the group has no backend for {}; it has {}",
                          options.device ? to_string(*options.device) : "any device",
                          known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))),
              context(op));
}

BackendPtr detail::GroupState::shared_backend(const Backend& backend) const {
  const std::lock_guard lock(mutex);
  for (const auto& each : backends) {
    if (each.get() == &backend) return each;
  }
  throw Error("the group was released");
}

std::vector<BackendPtr> detail::GroupState::distinct_backends() const {
  const std::lock_guard lock(mutex);
  std::vector<BackendPtr> all;
  for (const auto& each : backends) {
    if (each != nullptr && std::find(all.begin(), all.end(), each) == all.end()) all.push_back(each);
  }
  return all;
}

// --- construction and accessors

ProcessGroup::ProcessGroup(StorePtr store, int rank, int size, std::chrono::milliseconds timeout, std::string id)
    : Operations(rank, size), state_(std::make_shared<detail::GroupState>()) {
  if (size < 1) throw ValueError(fmt::format("a group of {} ranks", size));
  if (rank < 0 || rank >= size) throw ValueError(fmt::format("rank {} of a group of {}", rank, size));
  state_->store = std::move(store);
  state_->own_rank = rank;
  state_->timeout = timeout;
  state_->id = id.empty() ? local_id() : std::move(id);
  state_->global_ranks.resize(index_of(size));
  std::iota(state_->global_ranks.begin(), state_->global_ranks.end(), 0);
}

ProcessGroup::~ProcessGroup() {
  forget_group(state_->id, this);
  if (state_->generation != fork_generation()) {
    // The group's threads exist only in the parent process, so there is nothing to wait for. The state is never
    // destroyed.
    static Immortal<std::vector<std::shared_ptr<detail::GroupState>>> of_parents;
    of_parents->push_back(std::move(state_));
    return;
  }
  // Operations in progress hold the state. One of the group's own threads cannot wait for them; then the last operation
  // to end destroys the state.
  if (state_->collectives.is_own_thread() || state_->p2p_progress.is_own_thread()) return;
  state_->await_pending(Deadline::never());
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
  for (std::size_t i = 0; i < detail::GroupState::device_types; ++i) {
    if (state_->fast[i].load(std::memory_order_acquire) != nullptr) types.push_back(static_cast<DeviceType>(i));
  }
  return types;
}

Capabilities ProcessGroup::capabilities(const Device& device) const {
  const auto backend = this->backend(device);
  auto capabilities = backend->capabilities();
  capabilities.user_reductions = has_user_reductions(*backend);
  const std::lock_guard lock(state_->mutex);
  if (state_->recipe == nullptr) capabilities.regrouping = false;
  capabilities.shrinking = capabilities.shrinking || capabilities.regrouping;
  return capabilities;
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
  if (timeout.count() <= 0)
    throw ValueError(fmt::format("set_timeout: the timeout must be positive, not {} ms", timeout.count()));
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

// --- ends

void ProcessGroup::wait_for_pending(Timeout timeout) {
  state_->wait_for_pending("wait_for_pending", timeout.duration_or(no_timeout));
}

void ProcessGroup::shutdown(Timeout timeout) {
  state_->check_process("shutdown");
  static constexpr const char* reason = "the group was shut down";
  const char* open = nullptr;
  if (!state_->closed.compare_exchange_strong(open, reason) && open != reason) return;
  if (state_->is_shut_down) return;  // also on a thread of the group, which could not wait
  const auto limit = timeout.duration_or(no_timeout);
  const auto deadline = Deadline::after(limit);
  state_->wait_for_pending("shutdown", limit);
  if (state_->is_shut_down.exchange(true)) return;
  for (const auto& backend : state_->distinct_backends()) backend->shutdown(deadline);
}

void ProcessGroup::abort(std::string_view reason) {
  state_->check_process("abort");
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->is_aborted) state_->abort_reason = reason;
    state_->is_aborted = true;
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
          fmt::format("an abort hook of group {} threw something that is not a std::exception", state_->id));
    }
  }
}

std::string_view ProcessGroup::why_closed() const noexcept {
  const auto* const reason = state_->closed.load(std::memory_order_acquire);
  if (reason != nullptr) return reason;
  return state_->is_aborted.load(std::memory_order_acquire) ? "the group was aborted" : std::string_view();
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
