// SPDX-License-Identifier: BSD-3-Clause
//
// Notices that a rank has been in one operation for a while, without any cost in the path of operations: a thread looks
// twice a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "core/worker.h"

namespace cohort {

class StallWatch {
 public:
  static constexpr std::chrono::milliseconds interval{500};

  /// `current` returns the number of the operation that the rank is in, or 0. `on_stall` is called once for each
  /// operation that was seen twice; it may block, and must not destroy the watch.
  StallWatch(std::function<std::uint64_t()> current, std::function<void()> on_stall)
      : worker_("cohort-stall", std::make_shared<Job>(std::move(current), std::move(on_stall))) {
    worker_.submit([] {});
  }

 private:
  class Job final : public Worker::Job {
   public:
    Job(std::function<std::uint64_t()> current, std::function<void()> on_stall)
        : current_(std::move(current)), on_stall_(std::move(on_stall)) {}

   private:
    Worker::Next step(Worker::Lock& lock) override {
      if (is_stopping()) return Worker::Next::idle();
      const auto now = current_();
      const bool is_stalled = now != 0 && now == seen_ && now != reported_;
      seen_ = now;
      if (is_stalled) {
        reported_ = now;
        lock.unlock();
        on_stall_();
        lock.lock();
      }
      return Worker::Next::idle(Worker::Clock::now() + interval);
    }

    const std::function<std::uint64_t()> current_;
    const std::function<void()> on_stall_;
    std::uint64_t seen_ = 0;
    std::uint64_t reported_ = 0;
  };

  Worker worker_;
};

}  // namespace cohort
