// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <cohort/future.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/graph_timeline.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// Notes when the instructions of one replay begin and end, and when the asynchronous collectives are complete that
/// this thread issues as long as the clock exists.
class ReplayClock {
 public:
  explicit ReplayClock(const Program& program);

  /// The instruction that began when the one before ended has ended. Waits for the device before, if the step is on
  /// one.
  void end_instruction();
  /// After the last instruction.
  ReplayTimes finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct Completion {
    std::size_t instruction;
    Future<std::int64_t> at;
  };

  void watch(const Issue& issue);
  static std::int64_t since(Clock::time_point begin);

  std::optional<c10::Device> device_;
  ReplayTimes times_;
  std::vector<Completion> completions_;
  IssueObserver observer_;
  Clock::time_point begin_;
};

}  // namespace cohort::recording
