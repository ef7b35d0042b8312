// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/watchdog.h"

#include <cohort/log.h>

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "core/reaper.h"
#include "core/start_thread.h"

namespace cohort::nccl {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

namespace {
constexpr auto period = 100ms;
constexpr auto hurried_period = 1ms;  ///< while somebody waits for the end
constexpr int rounds_awake = 50;      ///< with nothing to watch, before it sleeps until it is woken
thread_local const void* watchdog_of_this_thread = nullptr;
}  // namespace

struct Watchdog::Core {
  CommunicatorPtr communicator;
  cuda::ContextPtr context;

  std::mutex mutex{};
  std::condition_variable changed{};  ///< for the thread
  std::condition_variable emptied{};  ///< for who drains
  std::vector<EnqueuedPtr> watched{};
  Clock::time_point wakes_at = Clock::time_point::max();  ///< when the thread looks next
  int draining = 0;
  int sweeping = 0;
  bool is_closed = false;

  bool is_idle() const { return watched.empty() && sweeping == 0; }

  void loop();
  /// One round over what is watched.
  void look(const std::vector<EnqueuedPtr>& operations);
  void fail(const std::exception_ptr& error, bool aborts);
  /// Lets go of what has ended.
  void sweep();
};

Watchdog::Watchdog(CommunicatorPtr communicator, cuda::ContextPtr context) : core_(std::make_shared<Core>()) {
  core_->communicator = std::move(communicator);
  core_->context = std::move(context);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->is_closed = true;
    core_->changed.notify_all();
  }
  join_now_or_later(std::move(thread_));
}

void Watchdog::watch(EnqueuedPtr operation) {
  const auto deadline = operation->deadline().when();
  const std::lock_guard lock(core_->mutex);
  if (!thread_.joinable()) thread_ = start_thread([core = core_] { core->loop(); });
  core_->watched.push_back(std::move(operation));
  if (core_->wakes_at == Clock::time_point::max() || deadline < core_->wakes_at) core_->changed.notify_all();
}

void Watchdog::drain() {
  if (watchdog_of_this_thread == core_.get()) return;
  std::unique_lock lock(core_->mutex);
  if (core_->is_idle()) return;
  ++core_->draining;
  core_->changed.notify_all();
  core_->emptied.wait(lock, [this] { return core_->is_idle(); });
  --core_->draining;
}

void Watchdog::fail(const std::exception_ptr& error, bool aborts) {
  core_->fail(error, aborts);
}

void Watchdog::Core::fail(const std::exception_ptr& error, bool aborts) {
  communicator->break_with(error);
  std::vector<EnqueuedPtr> operations;
  {
    const std::lock_guard lock(mutex);
    operations = watched;
  }
  // Before the abort, which makes kernels leave early and look as if they had ended well.
  for (const auto& each : operations) {
    if (!each->is_done()) each->end(error);
  }
  operations.clear();
  if (aborts) communicator->abort();
  sweep();
}

void Watchdog::Core::sweep() {
  std::vector<EnqueuedPtr> ended;
  std::unique_lock lock(mutex);
  const auto first =
      std::stable_partition(watched.begin(), watched.end(), [](const EnqueuedPtr& each) { return !each->has_ended(); });
  std::move(first, watched.end(), std::back_inserter(ended));
  watched.erase(first, watched.end());
  // Let go without the lock: the last of it may be a whole group. Whoever drains wants it gone.
  ++sweeping;
  lock.unlock();
  ended.clear();
  lock.lock();
  --sweeping;
  if (is_idle()) emptied.notify_all();
}

void Watchdog::Core::look(const std::vector<EnqueuedPtr>& operations) {
  const auto now = Clock::now();
  std::vector<void*> busy;  // streams on which something is not through: nothing behind it is
  const Enqueued* late = nullptr;
  for (const auto& each : operations) {
    auto* const stream = each->stream();
    const bool may_be_done = std::find(busy.begin(), busy.end(), stream) == busy.end();
    if (may_be_done && each->is_done()) continue;
    if (may_be_done) busy.push_back(stream);
    if (late == nullptr && each->deadline().when() <= now) late = each.get();
  }
  if (late != nullptr) {
    const auto& call = late->call();
    return fail(std::make_exception_ptr(OperationTimeoutError(
                    fmt::format("{} did not end within {} ms", to_string(call.op()), call.timeout().count()),
                    {.group = communicator->place().group,
                     .op = std::string(to_string(call.op())),
                     .sequence = call.sequence()})),
                true);
  }
  if (busy.empty()) return;
  // Whoever uses the communicator right now gets its errors himself.
  std::exception_ptr error;
  if (const auto use = communicator->try_use()) {
    ErrorContext where{.group = communicator->place().group};
    for (const auto& each : operations) {
      if (each->has_ended()) continue;
      where.op = to_string(each->call().op());
      where.sequence = each->call().sequence();
      break;
    }
    error = communicator->async_error(*use, where);
  }
  if (error) fail(error, true);
}

void Watchdog::Core::loop() {
  ::pthread_setname_np(::pthread_self(), "cohort-nccl");
  watchdog_of_this_thread = this;
  try {
    cuda::check(context->driver(), context->driver().context_set_current(context->get()), "cuCtxSetCurrent");
  } catch (const BackendError& e) {
    log(LogLevel::error, e.what());
  }
  std::vector<EnqueuedPtr> operations;
  int idle = 0;
  std::unique_lock lock(mutex);
  for (;;) {
    if (is_closed && watched.empty()) return;
    idle = watched.empty() ? idle + 1 : 0;
    wakes_at = Clock::now() + (draining > 0 ? std::chrono::milliseconds(hurried_period) : period);
    for (const auto& each : watched) wakes_at = std::min(wakes_at, each->deadline().when());
    if (idle > rounds_awake) {
      wakes_at = Clock::time_point::max();
      changed.wait(lock, [this] { return is_closed || !watched.empty(); });
      idle = 0;
      continue;
    }
    changed.wait_until(lock, wakes_at);
    operations = watched;
    lock.unlock();
    look(operations);
    operations.clear();  // so that sweep() lets go of the last
    sweep();
    lock.lock();
  }
}

}  // namespace cohort::nccl
