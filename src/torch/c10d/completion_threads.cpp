// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/completion_threads.h"

#include <cohort/error.h>
#include <cohort/log.h>
#include <pthread.h>
#include <unistd.h>

#include <exception>
#include <list>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/immortal.h"
#include "core/wait_until.h"

namespace cohort {

namespace {

/// Never destroyed: the threads of one process, and of the processes that it was forked from, whose threads do not
/// exist here and which must not be touched.
struct Threads {
  std::mutex mutex;
  pid_t process = 0;
  std::shared_ptr<CompletionThreads> current;
  std::list<std::shared_ptr<CompletionThreads>> of_parents;
  std::list<std::thread> threads;
};

Threads& all_threads() {
  static Immortal<Threads> threads;
  return *threads;
}

}  // namespace

std::shared_ptr<CompletionThreads> CompletionThreads::instance() {
  auto& all = all_threads();
  const std::lock_guard lock(all.mutex);
  if (all.process != ::getpid()) {
    if (all.current != nullptr) all.of_parents.push_back(std::move(all.current));
    all.current = std::make_shared<CompletionThreads>();
    all.process = ::getpid();
  }
  return all.current;
}

void CompletionThreads::run(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  tasks_.push_back(std::move(task));
  if (is_stopped_) return;
  if (idle_ >= tasks_.size()) return changed_.notify_one();
  try {
    auto& all = all_threads();
    const std::lock_guard all_lock(all.mutex);
    all.threads.emplace_back([this] { serve(); });  // the instance is never destroyed
    ++threads_;
  } catch (const std::system_error& e) {
    log(LogLevel::warn, std::string("a thread for callbacks of futures could not be started: ") + e.what());
    if (threads_ == 0) run_first(lock);  // otherwise one of the others runs the task when it is free
  }
}

void CompletionThreads::stop(Deadline deadline) {
  std::unique_lock lock(mutex_);
  is_stopped_ = true;
  wait_until(changed_, lock, deadline, [this] { return running_ == 0; });
}

void CompletionThreads::run_first(std::unique_lock<std::mutex>& lock) noexcept {
  auto task = std::move(tasks_.front());
  tasks_.pop_front();
  ++running_;
  lock.unlock();
  try {
    task();
  } catch (const std::exception& e) {
    log(LogLevel::error, std::string("an exception escaped a callback of a future: ") + e.what());
  }
  task = nullptr;  // destroys what it holds, which may be objects of Python, while the lock is not held
  lock.lock();
  if (--running_ == 0 && is_stopped_) changed_.notify_all();
}

void CompletionThreads::serve() noexcept {
  ::pthread_setname_np(::pthread_self(), "cohort-c10d");
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return !tasks_.empty() && !is_stopped_; });
    --idle_;
    run_first(lock);
  }
}

}  // namespace cohort
