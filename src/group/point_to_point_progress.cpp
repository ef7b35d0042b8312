// SPDX-License-Identifier: BSD-3-Clause
#include "group/point_to_point_progress.h"

#include <cohort/error.h>

#include <pthread.h>

#include <utility>

#include "core/reaper.h"
#include "core/start_thread.h"
#include "group/transfer_timeout.h"

namespace cohort {

namespace {
thread_local const void* courier_of_this_thread = nullptr;
}

struct PointToPointProgress::Core {
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Item> added;
  std::size_t pending = 0;  ///< added and not done
  bool is_closed = false;

  void loop();
  /// Whether any moved to its end.
  bool advance_all(std::list<Item>& items, bool with_check);
};

bool PointToPointProgress::Core::advance_all(std::list<Item>& items, bool with_check) {
  bool any_ended = false;
  for (auto it = items.begin(); it != items.end();) {
    int source = -1;
    std::exception_ptr error;
    bool is_done = false;
    try {
      is_done = it->transfer->advance();
      if (is_done) {
        source = it->transfer->source();
      } else if (it->call.deadline().expired()) {
        error = std::make_exception_ptr(transfer_timeout(it->call, it->context.rank.value_or(-1), it->context));
      } else if (with_check) {
        it->transfer->check();
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (!is_done && !error) {
      ++it;
      continue;
    }
    it->transfer.reset();  // before anybody is told: from then on its memory is the caller's
    it->done(source, error);
    it = items.erase(it);
    any_ended = true;
    const std::lock_guard lock(mutex);
    --pending;
    changed.notify_all();
  }
  return any_ended;
}

void PointToPointProgress::Core::loop() {
  ::pthread_setname_np(::pthread_self(), "cohort-p2p");
  courier_of_this_thread = this;
  std::list<Item> items;
  auto next_check = Deadline::Clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex);
      if (items.empty()) changed.wait(lock, [this] { return is_closed || !added.empty(); });
      items.splice(items.end(), added);
      if (items.empty()) return;
    }
    const auto now = Deadline::Clock::now();
    const bool with_check = now >= next_check;
    if (with_check) next_check = now + std::chrono::milliseconds(20);
    if (advance_all(items, with_check) || items.empty()) continue;
    auto until = Deadline::at(next_check);
    for (auto& item : items) until = earlier(until, item.call.deadline());
    // Whatever is added meanwhile is advanced by its adder first, so a short rest delays nobody.
    items.front().backend->rest(until);
  }
}

PointToPointProgress::PointToPointProgress() : core_(std::make_shared<Core>()) {}

PointToPointProgress::~PointToPointProgress() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->is_closed = true;
    core_->changed.notify_all();
  }
  join_now_or_later(std::move(thread_));
}

void PointToPointProgress::add(BackendPtr backend, std::unique_ptr<Transfer> transfer, const Call& call,
                               ErrorContext context, Done done) {
  const std::lock_guard lock(core_->mutex);
  if (!thread_.joinable()) thread_ = start_thread([core = core_] { core->loop(); });
  core_->added.push_back({std::move(backend), std::move(transfer), call, std::move(context), std::move(done)});
  ++core_->pending;
  core_->changed.notify_all();
}

bool PointToPointProgress::is_own_thread() const {
  return courier_of_this_thread == core_.get();
}

void PointToPointProgress::wait_until_idle() {
  std::unique_lock lock(core_->mutex);
  core_->changed.wait(lock, [this] { return core_->pending == 0; });
}

}  // namespace cohort
