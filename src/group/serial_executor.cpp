// SPDX-License-Identifier: BSD-3-Clause
#include "group/serial_executor.h"

#include <cohort/log.h>

#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "core/reaper.h"
#include "core/start_thread.h"

namespace cohort {

struct SerialExecutor::Core {
  const char* name;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool is_closed = false;

  void loop() {
    ::pthread_setname_np(::pthread_self(), name);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_closed || !tasks.empty(); });
      if (tasks.empty()) return;
      auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      try {
        task();
      } catch (const std::exception& e) {
        log(LogLevel::error, fmt::format("a continuation threw: {}", e.what()));
      } catch (...) {
        log(LogLevel::error, "a continuation threw something that is no std::exception");
      }
      task = nullptr;  // what it holds goes now, without the lock
      lock.lock();
    }
  }
};

SerialExecutor::SerialExecutor(const char* name) : core_(std::make_shared<Core>()) {
  core_->name = name;
}

SerialExecutor::~SerialExecutor() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->is_closed = true;
    core_->changed.notify_all();
  }
  join_now_or_later(std::move(thread_));
}

void SerialExecutor::run(std::function<void()> task) {
  const std::lock_guard lock(core_->mutex);
  if (!thread_.joinable()) thread_ = start_thread([core = core_] { core->loop(); });
  core_->tasks.push_back(std::move(task));
  core_->changed.notify_one();
}

}  // namespace cohort
