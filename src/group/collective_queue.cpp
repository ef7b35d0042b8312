// SPDX-License-Identifier: BSD-3-Clause
#include "group/collective_queue.h"

namespace cohort {

namespace {

/// The queue that this thread helps.
thread_local const void* helped = nullptr;

class HelpedQueue {
 public:
  explicit HelpedQueue(const void* queue) : before_(std::exchange(helped, queue)) {}
  ~HelpedQueue() { helped = before_; }
  HelpedQueue(const HelpedQueue&) = delete;
  HelpedQueue& operator=(const HelpedQueue&) = delete;

 private:
  const void* before_;
};

}  // namespace

void CollectiveQueue::Core::wake_thread() {
  const std::lock_guard lock(mutex);
  wake();
}

std::uint64_t CollectiveQueue::enqueue(Task task) {
  return worker_.submit([&] {
    auto word = core_->word.load(std::memory_order_relaxed);
    while (!core_->word.compare_exchange_weak(word, (word + one) | queued, std::memory_order_relaxed)) {
    }
    const auto sequence = (word + one) / one;
    core_->tasks.emplace_back(sequence, std::move(task));
    return sequence;
  });
}

Worker::Next CollectiveQueue::Core::step(Worker::Lock& lock) {
  if (tasks.empty()) return Worker::Next::idle();
  // While `queued` is set no other thread can enter, and those that help hold the mutex when they begin: once the
  // running operation has left, it is this thread's turn.
  if ((word.load(std::memory_order_acquire) & running) != 0) return Worker::Next::when_woken();
  run_first(lock);
  return Worker::Next::again();
}

void CollectiveQueue::Core::help_until(std::uint64_t sequence) {
  Worker::Lock lock(mutex);
  if (helped == this)
    return;  // an operation's own code waits for a later one: this thread's turn ends with the operation
  const HelpedQueue scope(this);
  while (!tasks.empty() && tasks.front().first <= sequence && (word.load(std::memory_order_acquire) & running) == 0) {
    run_first(lock);
  }
  if (!tasks.empty()) wake();
}

bool CollectiveQueue::Core::is_helped_by_this_thread() const {
  return helped == this;
}

void CollectiveQueue::Core::run_first(Worker::Lock& lock) {
  word.fetch_or(running, std::memory_order_acquire);
  auto [sequence, task] = std::move(tasks.front());
  tasks.pop_front();
  lock.unlock();
  task(sequence);
  task = nullptr;  // destroys what the task holds while the lock is not held
  lock.lock();
  // Later operations queue up behind this one until none is left.
  word.fetch_and(tasks.empty() ? ~(running | queued) : ~running, std::memory_order_release);
  progressed.notify_all();
}

bool CollectiveQueue::wait_until_idle(Deadline deadline) {
  Worker::Lock lock(core_->mutex);
  // An operation that runs on its caller's thread notifies nobody when it leaves an empty queue, so this has to poll.
  while ((core_->word.load(std::memory_order_acquire) & (running | queued)) != 0) {
    if (deadline.expired()) return false;
    core_->progressed.wait_for(lock, std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace cohort
