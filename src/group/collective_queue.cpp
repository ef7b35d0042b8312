// SPDX-License-Identifier: BSD-3-Clause
#include "group/collective_queue.h"

#include <pthread.h>

#include <utility>

#include "core/reaper.h"
#include "core/start_thread.h"

namespace cohort {

namespace {
thread_local const void* lane_of_this_thread = nullptr;
}

CollectiveQueue::CollectiveQueue(const char* name) : core_(std::make_shared<Core>()) {
  core_->name = name;
}

CollectiveQueue::~CollectiveQueue() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->is_closed = true;
    core_->changed.notify_all();
  }
  join_now_or_later(std::move(thread_));
}

void CollectiveQueue::Core::wake() {
  const std::lock_guard lock(mutex);
  changed.notify_all();
}

std::uint64_t CollectiveQueue::enqueue(Task task) {
  const std::lock_guard lock(core_->mutex);
  if (!thread_.joinable()) thread_ = start_thread([core = core_] { core->loop(); });
  auto word = core_->word.load(std::memory_order_relaxed);
  while (!core_->word.compare_exchange_weak(word, (word + one) | queued, std::memory_order_relaxed)) {
  }
  const auto sequence = (word + one) / one;
  core_->tasks.emplace_back(sequence, std::move(task));
  core_->changed.notify_all();
  return sequence;
}

void CollectiveQueue::Core::loop() {
  ::pthread_setname_np(::pthread_self(), name);
  lane_of_this_thread = this;
  std::unique_lock lock(mutex);
  for (;;) {
    // While `queued` is set nobody else enters, so once what runs has left, it is this thread's turn.
    changed.wait(lock,
                 [this] { return tasks.empty() ? is_closed : (word.load(std::memory_order_acquire) & running) == 0; });
    if (tasks.empty()) return;
    word.fetch_or(running, std::memory_order_acquire);
    auto [sequence, task] = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task(sequence);
    task = nullptr;  // what it holds goes now, without the lock
    lock.lock();
    // Later operations queue up behind this one until none is left.
    word.fetch_and(tasks.empty() ? ~(running | queued) : ~running, std::memory_order_release);
    changed.notify_all();
  }
}

bool CollectiveQueue::is_own_thread() const {
  return lane_of_this_thread == core_.get();
}

void CollectiveQueue::wait_until_idle() {
  std::unique_lock lock(core_->mutex);
  // An operation that runs on its caller's thread wakes nobody when it leaves an empty queue: look now and then.
  while ((core_->word.load(std::memory_order_acquire) & (running | queued)) != 0) {
    core_->changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

}  // namespace cohort
