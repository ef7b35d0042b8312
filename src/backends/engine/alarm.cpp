// SPDX-License-Identifier: BSD-3-Clause
#include "backends/engine/alarm.h"

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

/// All alarms that are set, and the thread that watches the first.
struct Belfry {
  std::mutex mutex;
  std::condition_variable changed;
  std::multimap<Alarm::Time, Alarm*> alarms;
  /// When the thread looks next. Alarms that were taken back may leave it too early, which costs one look.
  Alarm::Time wakes_at = Alarm::Time::max();
  const pid_t owner = ::getpid();

  /// This process's. A child that was forked has no thread of its parent's, and a condition variable on which one waits
  /// at the time is of no use there: it gets a belfry of its own, and the parent's is left as it is.
  static Belfry& instance() {
    static std::atomic<Belfry*> current{nullptr};
    auto* known = current.load(std::memory_order_acquire);
    if (known != nullptr && known->owner == ::getpid()) return *known;
    auto fresh = std::make_unique<Belfry>();
    if (current.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) {
      auto* const mine = fresh.release();  // for the rest of the process
      static Immortal<std::vector<std::thread>> threads;
      threads->emplace_back([mine] { mine->watch(); });
      return *mine;
    }
    return *known;
  }

  void watch() {
    ::pthread_setname_np(::pthread_self(), "cohort-alarm");
    std::unique_lock lock(mutex);
    for (;;) {
      if (alarms.empty()) {
        wakes_at = Alarm::Time::max();
        changed.wait(lock);
        continue;
      }
      const auto [when, alarm] = *alarms.begin();
      if (when > std::chrono::steady_clock::now()) {
        wakes_at = when;
        changed.wait_until(lock, when);
        continue;
      }
      alarms.erase(alarms.begin());
      alarm->state_ = Alarm::State::ringing;
      lock.unlock();
      alarm->ring_();
      lock.lock();
      alarm->state_ = Alarm::State::rung;
      changed.notify_all();
    }
  }
};

Alarm::Alarm(Time when, std::function<void()> ring) : belfry_(Belfry::instance()), when_(when), ring_(std::move(ring)) {
  auto& belfry = belfry_;
  const std::lock_guard lock(belfry.mutex);
  belfry.alarms.emplace(when_, this);
  if (when_ < belfry.wakes_at) belfry.changed.notify_all();
}

Alarm::~Alarm() {
  auto& belfry = belfry_;
  if (belfry.owner != ::getpid()) return;  // the parent's
  std::unique_lock lock(belfry.mutex);
  if (state_ == State::set) {
    auto place = belfry.alarms.lower_bound(when_);
    while (place->second != this) ++place;
    belfry.alarms.erase(place);
    return;
  }
  belfry.changed.wait(lock, [this] { return state_ == State::rung; });
}

}  // namespace cohort
