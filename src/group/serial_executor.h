// SPDX-License-Identifier: BSD-3-Clause
//
// Runs tasks one after another on a thread of its own, started with the first task.
#pragma once

#include <cohort/future.h>

#include <functional>
#include <memory>
#include <thread>

namespace cohort {

class SerialExecutor final : public Executor {
 public:
  /// `name`: of the thread, at most 15 characters.
  explicit SerialExecutor(const char* name);
  /// Runs what is left. May be called on the executor's own thread, by its last task.
  ~SerialExecutor() override;
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void run(std::function<void()> task) override;

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // the thread's too: it may outlive this object by a moment
  std::thread thread_;
};

}  // namespace cohort
