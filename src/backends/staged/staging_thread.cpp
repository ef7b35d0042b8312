// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/staging_thread.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

#include "core/wait_until.h"

namespace cohort::staged {

using namespace std::chrono_literals;

namespace {

/// How long the end of the group waits for the copies of operations that have failed: on the stream they come after
/// whatever the user has enqueued there.
constexpr auto end_timeout = 30s;

/// A copy takes microseconds, an operation of the host's group mostly less than a millisecond.
void rest(unsigned round) {
  if (round < 200) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(round < 2000 ? 20us : 200us);
  }
}

bool release_if_through(const StagedOpPtr& op) {
  if (op->stage() != StagedOp::Stage::ended || !op->is_clear()) return false;
  op->release();
  return true;
}

}  // namespace

struct StagingThread::Core final : Worker::Job {
  std::function<void(const std::exception_ptr&)> on_stuck;

  std::condition_variable all_ended{};
  std::vector<StagedOpPtr> added{};
  std::size_t open = 0;  ///< how many have not ended
  std::exception_ptr closed_by{};

  // Used only by the thread.
  std::vector<StagedOpPtr> ops{};
  unsigned idle_rounds = 0;

  Worker::Next step(Worker::Lock& lock) override;
  /// Returns whether any operation moved.
  bool advance();
  /// Waits until the device no longer uses the memory of operations that have failed.
  void clear();
};

StagingThread::StagingThread(std::function<void(const std::exception_ptr&)> on_stuck)
    : core_(std::make_shared<Core>()), worker_("cohort-staged", core_) {
  core_->on_stuck = std::move(on_stuck);
}

void StagingThread::add(StagedOpPtr op) {
  worker_.submit([&] {
    core_->added.push_back(std::move(op));
    ++core_->open;
  });
}

bool StagingThread::drain(Deadline deadline) {
  if (worker_.is_current()) return true;
  Worker::Lock lock(core_->mutex);
  return wait_until(core_->all_ended, lock, deadline, [this] { return core_->open == 0; });
}

void StagingThread::close(const std::exception_ptr& error) {
  const std::lock_guard lock(core_->mutex);
  if (core_->closed_by == nullptr) core_->closed_by = error;
}

bool StagingThread::Core::advance() {
  std::exception_ptr closed;
  {
    const std::lock_guard lock(mutex);
    closed = closed_by;
  }
  bool has_moved = false;
  bool may_leave = true;
  for (const auto& each : ops) {
    const auto before = each->stage();
    if (before == StagedOp::Stage::ended) continue;
    if (before == StagedOp::Stage::leaving) {
      if (closed != nullptr) each->fail(closed);
      if (!may_leave) continue;
    }
    each->advance();
    const auto after = each->stage();
    if (after == StagedOp::Stage::leaving) may_leave = false;
    if (after == before) continue;
    has_moved = true;
    const bool is_stuck = before == StagedOp::Stage::leaving && each->error() != nullptr;
    if (is_stuck && closed == nullptr) {
      closed = each->error();
      on_stuck(closed);
    }
  }
  const std::lock_guard lock(mutex);
  open = added.size() + static_cast<std::size_t>(std::count_if(ops.begin(), ops.end(), [](const auto& each) {
           return each->stage() != StagedOp::Stage::ended;
         }));
  if (open == 0) all_ended.notify_all();
  return has_moved;
}

void StagingThread::Core::clear() {
  const auto until = Deadline::after(end_timeout);
  for (unsigned round = 0; !ops.empty() && !until.expired(); ++round) {
    std::erase_if(ops, release_if_through);
    if (!ops.empty()) rest(round);
  }
  for (const auto& each : ops) each->abandon();
  ops.clear();
}

Worker::Next StagingThread::Core::step(Worker::Lock& lock) {
  if (!added.empty()) idle_rounds = 0;
  std::move(added.begin(), added.end(), std::back_inserter(ops));
  added.clear();
  if (ops.empty()) return Worker::Next::idle();
  const bool is_last = is_stopping() && open == 0;
  lock.unlock();
  if (is_last) {
    clear();
  } else {
    idle_rounds = advance() ? 0 : idle_rounds + 1;
    std::erase_if(ops, release_if_through);
    if (!ops.empty()) rest(idle_rounds);
  }
  lock.lock();
  return Worker::Next::again();
}

}  // namespace cohort::staged
