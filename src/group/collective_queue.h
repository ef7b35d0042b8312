// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a group's collectives one at a time, in the order in which they were issued, from any thread.
//
// A blocking operation on an idle group runs on its caller's thread. Entering and leaving cost one atomic operation
// each, because a single word holds the whole state: the number of the last operation, whether one is running, and
// whether any are queued. All other operations are queued for the queue's own thread, which the first of them starts. A
// thread that waits for a queued operation runs it itself if the queue's thread has not begun it: that spares the two
// switches of threads there and back, which take longer than a small operation.
#pragma once

#include <cohort/deadline.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "core/worker.h"

namespace cohort {

/// Lets a thread that waits for a queued operation help the queue along.
class QueueHelper {
 public:
  virtual ~QueueHelper() = default;
  /// Runs queued operations on this thread, in order, up to the one with this number, as long as no other thread runs
  /// one.
  virtual void help_until(std::uint64_t sequence) = 0;
};

class CollectiveQueue {
 public:
  using Task = std::function<void(std::uint64_t sequence)>;

  /// `name` is the name of the thread, at most 15 characters. The destructor runs the queued tasks; it may be called on
  /// the queue's own thread, by its last task.
  explicit CollectiveQueue(const char* name) : worker_(name, core_) {}

  /// If the group is idle, gives the caller the turn until it calls leave(), and returns the next operation's number.
  std::optional<std::uint64_t> try_enter() {
    auto word = core_->word.load(std::memory_order_relaxed);
    while ((word & (running | queued)) == 0) {
      if (core_->word.compare_exchange_weak(word, (word + one) | running, std::memory_order_acquire)) {
        return (word + one) / one;
      }
    }
    return std::nullopt;
  }
  void leave() {
    if ((core_->word.fetch_and(~running, std::memory_order_release) & queued) != 0) core_->wake_thread();
  }

  /// Queues the task for the queue's thread, and returns the number that the task will be given.
  std::uint64_t enqueue(Task task);
  /// Whether the caller is the queue's thread, or one that helps and is in an operation.
  bool is_own_thread() const { return worker_.is_current() || core_->is_helped_by_this_thread(); }
  std::shared_ptr<QueueHelper> helper() const { return core_; }
  /// Waits until nothing runs and nothing is queued, and returns whether that was before the deadline. Not to be called
  /// on the queue's own thread.
  bool wait_until_idle(Deadline deadline = Deadline::never());

  std::uint64_t last_sequence() const { return core_->word.load(std::memory_order_relaxed) / one; }

 private:
  static constexpr std::uint64_t running = 1;
  static constexpr std::uint64_t queued = 2;
  static constexpr std::uint64_t one = 4;  ///< added for each operation; the number occupies the bits above the flags

  struct Core final : Worker::Job, QueueHelper {
    std::atomic<std::uint64_t> word{0};
    std::condition_variable progressed{};  ///< notifies callers of wait_until_idle()
    std::deque<std::pair<std::uint64_t, Task>> tasks{};

    void wake_thread();
    Worker::Next step(Worker::Lock& lock) override;
    void help_until(std::uint64_t sequence) override;
    bool is_helped_by_this_thread() const;
    /// Runs the first task, which there is; nothing else runs. The lock is released meanwhile.
    void run_first(Worker::Lock& lock);
  };

  const std::shared_ptr<Core> core_ = std::make_shared<Core>();
  Worker worker_;
};

/// Calls leave() at the end of a scope that try_enter() has entered.
class QueueTurn {
 public:
  explicit QueueTurn(CollectiveQueue& queue) : queue_(queue) {}
  ~QueueTurn() { queue_.leave(); }
  QueueTurn(const QueueTurn&) = delete;
  QueueTurn& operator=(const QueueTurn&) = delete;

 private:
  CollectiveQueue& queue_;
};

}  // namespace cohort
