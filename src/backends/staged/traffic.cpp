// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/traffic.h"

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

bool release_if_through(const JourneyPtr& journey) {
  if (journey->stage() != Journey::Stage::ended || !journey->is_clear()) return false;
  journey->release();
  return true;
}

}  // namespace

struct Traffic::Core {
  std::function<void(const std::exception_ptr&)> on_stuck;

  std::mutex mutex{};
  std::condition_variable changed{};
  std::vector<JourneyPtr> added{};
  std::size_t open = 0;  ///< how many have not ended
  bool is_over = false;
  std::exception_ptr closed_by{};

  void loop();
  /// True if something moved.
  bool advance(std::vector<JourneyPtr>& journeys);
  void clear(std::vector<JourneyPtr>& journeys);
};

Traffic::Traffic(std::function<void(const std::exception_ptr&)> on_stuck) : core_(std::make_shared<Core>()) {
  core_->on_stuck = std::move(on_stuck);
}

Traffic::~Traffic() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->is_over = true;
    core_->changed.notify_all();
  }
  join_now_or_later(std::move(thread_));
}

void Traffic::add(JourneyPtr journey) {
  const std::lock_guard lock(core_->mutex);
  if (!thread_.joinable()) thread_ = start_thread([core = core_] { core->loop(); });
  core_->added.push_back(std::move(journey));
  ++core_->open;
  core_->changed.notify_all();
}

void Traffic::drain() {
  if (traffic_of_this_thread == core_.get()) return;
  std::unique_lock lock(core_->mutex);
  core_->changed.wait(lock, [this] { return core_->open == 0; });
}

void Traffic::close(const std::exception_ptr& error) {
  const std::lock_guard lock(core_->mutex);
  if (core_->closed_by == nullptr) core_->closed_by = error;
}

bool Traffic::Core::advance(std::vector<JourneyPtr>& journeys) {
  std::exception_ptr closed;
  {
    const std::lock_guard lock(mutex);
    closed = closed_by;
  }
  bool has_moved = false;
  bool may_leave = true;
  for (const auto& each : journeys) {
    const auto before = each->stage();
    if (before == Journey::Stage::ended) continue;
    if (before == Journey::Stage::leaving) {
      if (closed != nullptr) each->fail(closed);
      if (!may_leave) continue;
    }
    each->advance();
    const auto after = each->stage();
    if (after == Journey::Stage::leaving) may_leave = false;
    if (after == before) continue;
    has_moved = true;
    const bool is_stuck = before == Journey::Stage::leaving && each->error() != nullptr;
    if (is_stuck && closed == nullptr) {
      closed = each->error();
      on_stuck(closed);
    }
  }
  const std::lock_guard lock(mutex);
  open = added.size() + static_cast<std::size_t>(std::count_if(journeys.begin(), journeys.end(), [](const auto& each) {
           return each->stage() != Journey::Stage::ended;
         }));
  if (open == 0) changed.notify_all();
  return has_moved;
}

void Traffic::Core::clear(std::vector<JourneyPtr>& journeys) {
  const auto until = Deadline::after(patience);
  for (unsigned round = 0; !journeys.empty() && !until.expired(); ++round) {
    std::erase_if(journeys, release_if_through);
    if (!journeys.empty()) rest(round);
  }
  for (const auto& each : journeys) each->abandon();
}

void Traffic::Core::loop() {
  ::pthread_setname_np(::pthread_self(), "cohort-staged");
  traffic_of_this_thread = this;
  std::vector<JourneyPtr> journeys;
  unsigned round = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      if (journeys.empty()) changed.wait(lock, [this] { return is_over || !added.empty(); });
      if (!added.empty()) round = 0;
      for (auto& each : std::exchange(added, {})) journeys.push_back(std::move(each));
      if (is_over && open == 0) break;
    }
    round = advance(journeys) ? 0 : round + 1;
    std::erase_if(journeys, release_if_through);
    if (!journeys.empty()) rest(round);
  }
  clear(journeys);
}

}  // namespace cohort::staged
