// SPDX-License-Identifier: BSD-3-Clause
#include "core/worker.h"

#include <cohort/log.h>

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <exception>
#include <vector>

#include "core/immortal.h"
#include "core/reaper.h"
#include "core/start_thread.h"

namespace cohort {

namespace {

thread_local const void* job_of_this_thread = nullptr;

/// Process-wide and thread-safe: the parent's workers that a child process destroys after fork(). Their threads do not
/// exist there, so they can be neither joined nor detached, and a condition variable on which one of them waits cannot
/// be destroyed.
struct LeftToParent {
  std::mutex mutex;
  std::vector<std::pair<std::thread, std::shared_ptr<Worker::Job>>> workers;
};

void log_current_exception() noexcept {
  try {
    throw;
  } catch (const std::exception& e) {
    log(LogLevel::error, fmt::format("an exception escaped on a helper thread: {}", e.what()));
  } catch (...) {
    log(LogLevel::error, "an exception that is no std::exception escaped on a helper thread");
  }
}

}  // namespace

void Worker::Job::wake() {
  is_woken_ = true;
  woken_.notify_one();
}

Worker::Next Worker::Job::step_or_log(Lock& lock) noexcept {
  try {
    return step(lock);
  } catch (...) {
    if (lock.owns_lock()) lock.unlock();  // a log sink may be anybody's code
    log_current_exception();
  }
  lock.lock();
  return Next::again();
}

void Worker::Job::run(const char* name) noexcept {
  ::pthread_setname_np(::pthread_self(), name);
  job_of_this_thread = this;
  try {
    begin();
  } catch (...) {
    log_current_exception();
  }
  Lock lock(mutex);
  for (;;) {
    is_woken_ = false;
    sleeps_until_ = Time::min();
    const auto next = step_or_log(lock);
    if (is_woken_) continue;
    if (next.is_idle && is_stopping_) return;
    if (next.when == Time::min()) continue;
    sleeps_until_ = next.when;
    const auto is_woken = [this] { return is_woken_; };
    if (next.when == Time::max()) {
      woken_.wait(lock, is_woken);
    } else {
      woken_.wait_until(lock, next.when, is_woken);
    }
  }
}

Worker::Worker(const char* name, std::shared_ptr<Job> job) : name_(name), job_(std::move(job)) {}

Worker::~Worker() {
  if (process_ != 0 && process_ != ::getpid()) {
    static Immortal<LeftToParent> left;
    const std::lock_guard lock(left->mutex);
    left->workers.emplace_back(std::move(thread_), job_);
    return;
  }
  {
    const Lock lock(job_->mutex);
    job_->is_stopping_ = true;
    job_->wake();
  }
  join_now_or_later(std::move(thread_));
}

void Worker::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread([job = job_, name = name_] { job->run(name); });
  process_ = ::getpid();
}

bool Worker::is_current() const noexcept {
  return job_of_this_thread == job_.get();
}

}  // namespace cohort
