// SPDX-License-Identifier: BSD-3-Clause
#include "group/point_to_point_progress.h"

#include <cohort/error.h>

#include <condition_variable>
#include <list>
#include <utility>

#include "core/wait_until.h"
#include "group/transfer_timeout.h"

namespace cohort {

struct PointToPointProgress::Core final : Worker::Job {
  std::condition_variable ended;
  std::list<Item> added;
  std::size_t pending = 0;  ///< transfers that were added and have not ended

  // Used by the progress thread only.
  std::list<Item> items;
  Deadline::Clock::time_point next_check{};

  Worker::Next step(Worker::Lock& lock) override;
  void advance_or_rest();
  /// Returns whether any transfer has ended.
  bool advance_all(bool with_check);
};

bool PointToPointProgress::Core::advance_all(bool with_check) {
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
        it->transfer->miss_deadline();
        error = std::make_exception_ptr(transfer_timeout(it->call, it->context.rank.value_or(-1), it->context));
      } else if (with_check) {
        it->transfer->check();
        if (it->is_awaited()) it->transfer->someone_waits();
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (!is_done && !error) {
      ++it;
      continue;
    }
    it->transfer.reset();  // before done() is called, which returns the memory to the caller
    it->done(source, error);
    it = items.erase(it);
    any_ended = true;
    const std::lock_guard lock(mutex);
    --pending;
    ended.notify_all();
  }
  return any_ended;
}

void PointToPointProgress::Core::advance_or_rest() {
  const auto now = Deadline::Clock::now();
  const bool with_check = now >= next_check;
  if (with_check) next_check = now + std::chrono::milliseconds(20);
  if (advance_all(with_check) || items.empty()) return;
  auto until = Deadline::at(next_check);
  for (auto& item : items) until = earlier(until, item.call.deadline());
  // A transfer that is added meanwhile has been advanced once by its caller, so a short rest does not delay it.
  items.front().backend->rest(until);
}

Worker::Next PointToPointProgress::Core::step(Worker::Lock& lock) {
  items.splice(items.end(), added);
  if (items.empty()) return Worker::Next::idle();
  lock.unlock();
  advance_or_rest();
  lock.lock();
  return Worker::Next::again();
}

PointToPointProgress::PointToPointProgress() : core_(std::make_shared<Core>()), worker_("cohort-p2p", core_) {}

void PointToPointProgress::add(BackendPtr backend, std::unique_ptr<Transfer> transfer, const Call& call,
                               ErrorContext context, std::function<bool()> is_awaited, Done done) {
  worker_.submit([&] {
    core_->added.push_back(
        {std::move(backend), std::move(transfer), call, std::move(context), std::move(is_awaited), std::move(done)});
    ++core_->pending;
  });
}

bool PointToPointProgress::wait_until_idle(Deadline deadline) {
  Worker::Lock lock(core_->mutex);
  return wait_until(core_->ended, lock, deadline, [this] { return core_->pending == 0; });
}

}  // namespace cohort
