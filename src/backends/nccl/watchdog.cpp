// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/watchdog.h"

#include <cohort/log.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <optional>
#include <utility>
#include <vector>

#include "core/wait_until.h"

namespace cohort::nccl {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

namespace {
constexpr std::chrono::milliseconds period = 100ms;
constexpr std::chrono::milliseconds hurried_period = 1ms;  ///< while somebody waits for the end
constexpr int rounds_awake = 50;  ///< with nothing to watch, before the thread sleeps until it is woken
}  // namespace

struct Watchdog::Core final : Worker::Job {
  CommunicatorPtr communicator;
  cuda::ContextPtr context;

  std::condition_variable emptied{};  ///< for threads that drain
  std::vector<EnqueuedPtr> watched{};
  int draining = 0;
  int sweeping = 0;
  int idle_rounds = rounds_awake;  ///< used only by the thread
  bool has_failed = false;         ///< and the thread has not carried it out yet
  std::atomic<bool> keeps_communicator{false};
  std::optional<FailureCoordinator> coordinator{};  ///< last, because its threads use the other members

  bool is_idle() const { return watched.empty() && sweeping == 0; }

  void begin() override;
  Worker::Next step(Worker::Lock& lock) override;
  Worker::Next next() const;
  /// Checks once all operations that are watched.
  void look(const std::vector<EnqueuedPtr>& operations);
  void miss_deadline(const Enqueued& operation);
  /// Threads that are about to use it throw the failure, and one that waits in it leaves.
  void break_communicator(const Failure& failure);
  void end();
  std::exception_ptr error_for(const Call& call);
  /// Releases the operations that have ended.
  void sweep();
};

Watchdog::Watchdog(CommunicatorPtr communicator, cuda::ContextPtr context, FailureCoordinator::Group group,
                   Deadline deadline)
    : core_(std::make_shared<Core>()), worker_("cohort-nccl", core_) {
  core_->communicator = std::move(communicator);
  core_->context = std::move(context);
  // The failure is carried out by the watchdog's thread, or by the thread that found it, or by one that is enqueueing
  // and finds the communicator broken. If the watchdog's has not been started, nothing else is in progress.
  core_->coordinator.emplace(std::move(group), deadline, [core = core_.get()](const Failure& failure) {
    core->break_communicator(failure);
    const std::lock_guard lock(core->mutex);
    core->has_failed = true;
    core->wake();
  });
}

FailureCoordinator& Watchdog::coordinator() {
  return *core_->coordinator;
}

void Watchdog::watch(const EnqueuedPtr& operation) {
  worker_.submit([&] { core_->watched.push_back(operation); }, operation->deadline().when());
  // end() may have looked for operations before, and the abort that follows makes this one return as if it had
  // succeeded.
  if (!core_->communicator->is_broken()) return;
  if (const auto error = core_->error_for(operation->call())) operation->end(error);
}

bool Watchdog::drain(Deadline deadline) {
  if (worker_.is_current()) return true;
  Worker::Lock lock(core_->mutex);
  if (core_->is_idle()) return true;
  ++core_->draining;
  core_->wake();
  const bool have_ended = wait_until(core_->emptied, lock, deadline, [this] { return core_->is_idle(); });
  --core_->draining;
  return have_ended;
}

void Watchdog::end() {
  core_->end();
}

void Watchdog::keep_communicator() {
  core_->keeps_communicator = true;
}

std::exception_ptr Watchdog::Core::error_for(const Call& call) {
  try {
    coordinator->check(call);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void Watchdog::Core::break_communicator(const Failure& failure) {
  communicator->break_with(error_of(failure, {.group = communicator->place().group}));
}

void Watchdog::Core::end() {
  break_communicator(coordinator->explain());
  std::vector<EnqueuedPtr> operations;
  {
    const std::lock_guard lock(mutex);
    operations = watched;
  }
  // Ended before the abort, which makes kernels return early as if they had succeeded.
  for (const auto& each : operations) {
    if (!each->is_done()) each->end(error_for(each->call()));
  }
  operations.clear();
  if (!keeps_communicator) communicator->abort();
  sweep();
}

void Watchdog::Core::sweep() {
  std::vector<EnqueuedPtr> ended;
  std::unique_lock lock(mutex);
  const auto first =
      std::stable_partition(watched.begin(), watched.end(), [](const EnqueuedPtr& each) { return !each->has_ended(); });
  std::move(first, watched.end(), std::back_inserter(ended));
  watched.erase(first, watched.end());
  for (const auto& each : ended) coordinator->exit(each->number());
  // Released without the lock, since this may destroy a whole group. Threads that drain wait for that too.
  ++sweeping;
  lock.unlock();
  ended.clear();
  lock.lock();
  --sweeping;
  if (is_idle()) emptied.notify_all();
}

void Watchdog::Core::look(const std::vector<EnqueuedPtr>& operations) {
  const auto now = Clock::now();
  std::vector<void*> busy;  // streams on which an operation is not done: none behind it is done either
  const Enqueued* late = nullptr;
  for (const auto& each : operations) {
    auto* const stream = each->stream();
    const bool may_be_done = std::find(busy.begin(), busy.end(), stream) == busy.end();
    if (may_be_done && each->is_done()) continue;
    if (may_be_done) busy.push_back(stream);
    if (late == nullptr && each->deadline().when() <= now) late = each.get();
  }
  if (late != nullptr) return miss_deadline(*late);
  if (busy.empty()) return;
  // A thread that uses the communicator right now gets its errors directly.
  std::optional<Failure> failure;
  if (const auto use = communicator->try_use()) failure = communicator->async_failure(*use);
  if (!failure) return;
  const auto first =
      std::find_if(operations.begin(), operations.end(), [](const auto& each) { return !each->has_ended(); });
  const auto& call = (first == operations.end() ? operations.front() : *first)->call();
  try {
    // NCCL does not say which rank is gone, and another one may know it.
    if (failure->kind == ErrorKind::peer_lost) coordinator->await_news(call);
    coordinator->fail(*failure, call);
  } catch (const Error&) {  // what the operations end with
    end();
  }
}

void Watchdog::Core::miss_deadline(const Enqueued& operation) {
  const auto& call = operation.call();
  const bool is_collective = operation.number() != 0;
  try {
    for (const auto& each : coordinator->departures()) {
      if (is_collective || operation.has_peer(each.rank)) coordinator->fail(each.failure(), call);
    }
    if (is_collective) coordinator->miss_deadline(call);
    // What the ranks do says nothing about messages, which only some of them exchange.
    coordinator->fail({.kind = ErrorKind::timeout,
                       .rank = operation.only_peer(),
                       .is_explained = true,
                       .text = fmt::format("{} #{} did not end within {} ms", to_string(call.op()), call.sequence(),
                                           call.timeout().count())},
                      call);
  } catch (const Error&) {  // what the operations end with
    end();
  }
}

void Watchdog::Core::begin() {
  cuda::check(context->driver(), context->driver().context_set_current(context->get()), "cuCtxSetCurrent");
}

Worker::Next Watchdog::Core::next() const {
  if (watched.empty()) {
    // The thread keeps checking for a while, so that operations that follow each other need not wake it.
    return Worker::Next::idle(idle_rounds < rounds_awake ? Clock::now() + period : Clock::time_point::max());
  }
  auto when = Clock::now() + (draining > 0 ? hurried_period : period);
  for (const auto& each : watched) when = std::min(when, each->deadline().when());
  return Worker::Next::at(when);
}

Worker::Next Watchdog::Core::step(Worker::Lock& lock) {
  if (has_failed) {
    has_failed = false;
    lock.unlock();
    end();
    lock.lock();
    return next();
  }
  const bool was_asleep = idle_rounds >= rounds_awake;
  idle_rounds = watched.empty() ? idle_rounds + 1 : 0;
  // Woken by an operation that was enqueued just now: there is nothing to check yet.
  if (watched.empty() || (was_asleep && draining == 0)) return next();
  auto operations = watched;
  lock.unlock();
  look(operations);
  operations.clear();  // so that sweep() holds the last references
  sweep();
  lock.lock();
  return next();
}

}  // namespace cohort::nccl
