// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/staging_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "core/reaper.h"
#include "core/start_thread.h"

namespace cohort::staged {

using namespace std::chrono_literals;

namespace {

/// How long an end waits for copies of operations that have failed: they stay behind what the user has on his stream.
constexpr auto patience = 30s;

thread_local const void* traffic_of_this_thread = nullptr;

/// A copy is through in microseconds, a host's operation mostly in less than a millisecond.
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

struct StagingThread::Core {
  std::function<void(const std::exception_ptr&)> on_stuck;

  std::mutex mutex{};
  std::condition_variable changed{};
  std::vector<StagedOpPtr> added{};
  std::size_t open = 0;  ///< how many have not ended
  bool is_over = false;
  std::exception_ptr closed_by{};

  void loop();
  /// True if something moved.
  bool advance(std::vector<StagedOpPtr>& ops);
  void clear(std::vector<StagedOpPtr>& ops);
};

StagingThread::StagingThread(std::function<void(const std::exception_ptr&)> on_stuck)
    : core_(std::make_shared<Core>()) {
  core_->on_stuck = std::move(on_stuck);
}

StagingThread::~StagingThread() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->is_over = true;
    core_->changed.notify_all();
  }
  join_now_or_later(std::move(thread_));
}

void StagingThread::add(StagedOpPtr op) {
  const std::lock_guard lock(core_->mutex);
  if (!thread_.joinable()) thread_ = start_thread([core = core_] { core->loop(); });
  core_->added.push_back(std::move(op));
  ++core_->open;
  core_->changed.notify_all();
}

void StagingThread::drain() {
  if (traffic_of_this_thread == core_.get()) return;
  std::unique_lock lock(core_->mutex);
  core_->changed.wait(lock, [this] { return core_->open == 0; });
}

void StagingThread::close(const std::exception_ptr& error) {
  const std::lock_guard lock(core_->mutex);
  if (core_->closed_by == nullptr) core_->closed_by = error;
}

bool StagingThread::Core::advance(std::vector<StagedOpPtr>& ops) {
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
  if (open == 0) changed.notify_all();
  return has_moved;
}

void StagingThread::Core::clear(std::vector<StagedOpPtr>& ops) {
  const auto until = Deadline::after(patience);
  for (unsigned round = 0; !ops.empty() && !until.expired(); ++round) {
    std::erase_if(ops, release_if_through);
    if (!ops.empty()) rest(round);
  }
  for (const auto& each : ops) each->abandon();
}

void StagingThread::Core::loop() {
  ::pthread_setname_np(::pthread_self(), "cohort-staged");
  traffic_of_this_thread = this;
  std::vector<StagedOpPtr> ops;
  unsigned round = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      if (ops.empty()) changed.wait(lock, [this] { return is_over || !added.empty(); });
      if (!added.empty()) round = 0;
      for (auto& each : std::exchange(added, {})) ops.push_back(std::move(each));
      if (is_over && open == 0) break;
    }
    round = advance(ops) ? 0 : round + 1;
    std::erase_if(ops, release_if_through);
    if (!ops.empty()) rest(round);
  }
  clear(ops);
}

}  // namespace cohort::staged
