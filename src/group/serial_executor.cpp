// SPDX-License-Identifier: BSD-3-Clause
#include "group/serial_executor.h"

#include <cohort/log.h>

#include <fmt/format.h>

#include <deque>
#include <utility>

namespace cohort {

struct SerialExecutor::Core final : Worker::Job {
  std::deque<std::function<void()>> tasks;

  Worker::Next step(Worker::Lock& lock) override {
    if (tasks.empty()) return Worker::Next::idle();
    auto task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    try {
      task();
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("a continuation threw: {}", e.what()));
    } catch (...) {
      log(LogLevel::error, "a continuation threw something that is not a std::exception");
    }
    task = nullptr;  // destroys what the task holds while the lock is not held
    lock.lock();
    return Worker::Next::again();
  }
};

SerialExecutor::SerialExecutor(const char* name) : core_(std::make_shared<Core>()), worker_(name, core_) {}

void SerialExecutor::run(std::function<void()> task) {
  worker_.submit([&] { core_->tasks.push_back(std::move(task)); });
}

}  // namespace cohort
