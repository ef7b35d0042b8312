// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/c10d_message.h"

#include "torch/c10d/completion_threads.h"

namespace cohort {

namespace {

using namespace std::chrono_literals;

constexpr auto max_sleep = 100us;

/// gloo closes the connections of the whole group when a wait of its own times out. So the wait is called off when the
/// deadline comes; where that is impossible, it ends this much later.
constexpr auto time_after_deadline = 5s;

}  // namespace

void MessageProgress::ended() {
  const std::lock_guard lock(mutex_);
  ++ended_;
  changed_.notify_all();
}

void MessageProgress::rest(Deadline until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until.when(), [this] { return ended_ != seen_; });
  seen_ = ended_;
}

int PostedMessage::source() const {
  try {
    return work_->sourceRank();
  } catch (const std::exception&) {
    return -1;
  }
}

bool PostedMessage::is_done(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (state_ == State::failed) std::rethrow_exception(error_);
  if (state_ == State::done) return true;
  if (can_be_polled_) {
    if (!work_->isCompleted()) return false;
    work_->wait();
    state_ = State::done;
    return true;
  }
  if (state_ == State::watched) return false;
  state_ = State::watched;
  lock.unlock();
  const auto timeout = c10d_timeout(deadline) + time_after_deadline;
  CompletionThreads::instance()->run([self = shared_from_this(), timeout] { self->watch(timeout); });
  return false;
}

void PostedMessage::watch(std::chrono::milliseconds timeout) noexcept {
  bool is_done = false;
  std::exception_ptr error;
  try {
    is_done = work_->wait(timeout);  // false if leave() has called it off
  } catch (...) {
    if (work_->isCompleted()) error = std::current_exception();  // otherwise the time is up
  }
  {
    const std::lock_guard lock(mutex_);
    error_ = error;
    state_ = error ? State::failed : is_done ? State::done : State::unwatched;
    changed_.notify_all();
  }
  progress_->ended();
}

void PostedMessage::rest(Deadline until) {
  std::unique_lock lock(mutex_);
  if (can_be_polled_) until = earlier(until, Deadline::at(Deadline::Clock::now() + max_sleep));
  changed_.wait_until(lock, until.when(), [this] { return state_ == State::done || state_ == State::failed; });
}

void PostedMessage::leave() noexcept {
  std::unique_lock lock(mutex_);
  if (state_ != State::watched) return;
  lock.unlock();
  try {
    work_->abort();
  } catch (const std::exception&) {
    // A backend without abort(): the wait ends with its timeout.
  }
  lock.lock();
  changed_.wait(lock, [this] { return state_ != State::watched; });
}

}  // namespace cohort
