// SPDX-License-Identifier: BSD-3-Clause
//
// Runs tasks one after another on a thread of its own, which the first task starts.
#pragma once

#include <cohort/future.h>

#include <functional>
#include <memory>

#include "core/worker.h"

namespace cohort {

class SerialExecutor final : public Executor {
 public:
  /// `name` is the name of the thread, at most 15 characters. The destructor runs the remaining tasks; it may be called
  /// on the executor's own thread, by its last task.
  explicit SerialExecutor(const char* name);

  void run(std::function<void()> task) override;

 private:
  struct Core;
  const std::shared_ptr<Core> core_;
  Worker worker_;
};

}  // namespace cohort
