// SPDX-License-Identifier: BSD-3-Clause
//
// The order in which a group's collectives run: that in which they were issued, from whichever thread, one at a time.
//
// A blocking operation on an idle group runs on its caller's thread: entering and leaving is one atomic exchange each,
// since everything there is to know is in one word (the number of the last operation, whether one runs, whether any
// wait). All others wait in a queue for the collectives's own thread, which is started by the first of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace cohort {

class CollectiveQueue {
 public:
  using Task = std::function<void(std::uint64_t sequence)>;

  explicit CollectiveQueue(const char* name);
  /// Runs what is queued. May be called on the collectives's own thread, by its last task.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  /// The next operation's number if the group is idle: it is the caller's turn now, until leave().
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
    if ((core_->word.fetch_and(~running, std::memory_order_release) & queued) != 0) core_->wake();
  }

  /// Runs later, in turn, on the collectives's thread. The number it gets is returned as well.
  std::uint64_t enqueue(Task task);
  /// Whether the caller is the collectives's thread.
  bool is_own_thread() const;
  /// Until nothing runs and nothing waits. Not on the collectives's own thread.
  void wait_until_idle();

  std::uint64_t last_sequence() const { return core_->word.load(std::memory_order_relaxed) / one; }

 private:
  static constexpr std::uint64_t running = 1;
  static constexpr std::uint64_t queued = 2;
  static constexpr std::uint64_t one = 4;  ///< the number of the last operation counts in these

  struct Core {
    const char* name = "";
    std::atomic<std::uint64_t> word{0};
    std::mutex mutex{};
    std::condition_variable changed{};
    std::deque<std::pair<std::uint64_t, Task>> tasks{};
    bool is_closed = false;

    void wake();
    void loop();
  };

  std::shared_ptr<Core> core_;  // the thread's too: it may outlive this object by a moment
  std::thread thread_;
};

/// Gives back a collectives that try_enter() gave.
class QueueTurn {
 public:
  explicit QueueTurn(CollectiveQueue& collectives) : lane_(collectives) {}
  ~QueueTurn() { lane_.leave(); }
  QueueTurn(const QueueTurn&) = delete;
  QueueTurn& operator=(const QueueTurn&) = delete;

 private:
  CollectiveQueue& lane_;
};

}  // namespace cohort
