// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/deadline_timer.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/immortal.h"

namespace cohort {

/// All timers that are set, and the thread that waits for the first of them. The thread is not a Worker, because the
/// gloo module contains a copy of this file and nothing else of the library.
struct TimerQueue {
  std::mutex mutex;
  std::condition_variable changed;
  std::multimap<DeadlineTimer::Time, DeadlineTimer*> timers;
  /// When the thread wakes next. A timer that has been destroyed since may leave this too early, which costs one
  /// needless wake-up.
  DeadlineTimer::Time wakes_at = DeadlineTimer::Time::max();
  const pid_t owner = ::getpid();

  /// The queue of this process. A forked child has none of its parent's threads, and cannot use a condition variable on
  /// which one of them was waiting at the time, so it gets a queue of its own and leaves the parent's as it is.
  static TimerQueue& instance() {
    static std::atomic<TimerQueue*> current{nullptr};
    auto* known = current.load(std::memory_order_acquire);
    if (known != nullptr && known->owner == ::getpid()) return *known;
    auto fresh = std::make_unique<TimerQueue>();
    if (current.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) {
      auto* const mine = fresh.release();  // kept for the rest of the process
      static Immortal<std::vector<std::thread>> threads;
      threads->emplace_back([mine] { mine->watch(); });
      return *mine;
    }
    return *known;
  }

  void watch() {
    ::pthread_setname_np(::pthread_self(), "cohort-timer");
    std::unique_lock lock(mutex);
    for (;;) {
      if (timers.empty()) {
        wakes_at = DeadlineTimer::Time::max();
        changed.wait(lock);
        continue;
      }
      const auto [when, timer] = *timers.begin();
      if (when > std::chrono::steady_clock::now()) {
        wakes_at = when;
        changed.wait_until(lock, when);
        continue;
      }
      timers.erase(timers.begin());
      timer->state_ = DeadlineTimer::State::ringing;
      lock.unlock();
      timer->ring_();
      lock.lock();
      timer->state_ = DeadlineTimer::State::rung;
      changed.notify_all();
    }
  }
};

DeadlineTimer::DeadlineTimer(Time when, std::function<void()> ring)
    : queue_(TimerQueue::instance()), when_(when), ring_(std::move(ring)) {
  const std::lock_guard lock(queue_.mutex);
  queue_.timers.emplace(when_, this);
  if (when_ < queue_.wakes_at) queue_.changed.notify_all();
}

DeadlineTimer::~DeadlineTimer() {
  if (queue_.owner != ::getpid()) return;  // it belongs to the parent
  std::unique_lock lock(queue_.mutex);
  if (state_ == State::set) {
    auto place = queue_.timers.lower_bound(when_);
    while (place->second != this) ++place;
    queue_.timers.erase(place);
    return;
  }
  queue_.changed.wait(lock, [this] { return state_ == State::rung; });
}

}  // namespace cohort
