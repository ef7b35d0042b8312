// SPDX-License-Identifier: BSD-3-Clause
#include "backends/engine/alarm.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/immortal.h"

namespace cohort {

/// All alarms that are set, and the thread that watches the first.
struct Belfry {
  std::mutex mutex;
  std::condition_variable changed;
  std::multimap<Alarm::Time, Alarm*> alarms;
  std::thread thread;
  pid_t owner = 0;  ///< a child that was forked has no thread of ours

  static Belfry& instance() {
    static Immortal<Belfry> belfry;
    return *belfry;
  }

  void watch() {
    ::pthread_setname_np(::pthread_self(), "cohort-alarm");
    std::unique_lock lock(mutex);
    for (;;) {
      if (alarms.empty()) {
        changed.wait(lock);
        continue;
      }
      const auto [when, alarm] = *alarms.begin();
      if (when > std::chrono::steady_clock::now()) {
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

Alarm::Alarm(Time when, std::function<void()> ring) : when_(when), ring_(std::move(ring)) {
  auto& belfry = Belfry::instance();
  const std::lock_guard lock(belfry.mutex);
  if (belfry.owner != ::getpid()) {
    if (belfry.thread.joinable()) belfry.thread.detach();  // the parent's: there is none here
    belfry.thread = std::thread([&belfry] { belfry.watch(); });
    belfry.owner = ::getpid();
  }
  const auto place = belfry.alarms.emplace(when_, this);
  if (place == belfry.alarms.begin()) belfry.changed.notify_all();
}

Alarm::~Alarm() {
  auto& belfry = Belfry::instance();
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
