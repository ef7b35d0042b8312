// SPDX-License-Identifier: BSD-3-Clause
//
// The bookkeeping around one operation: the flight recorder's entry and the user's hooks.
#pragma once

#include <cohort/operation.h>
#include <cohort/process_group.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "observe/recorder.h"

namespace cohort {

class OpRecord {
 public:
  /// When the operation starts: on this thread at once; later, when started() is called; or it has just been performed,
  /// without a wait.
  enum class Start : std::uint8_t { now, later, now_and_ends };

  explicit OpRecord(detail::GroupState& state) : state_(state) {}
  OpRecord(detail::GroupState& state, const Operation& op, std::uint64_t sequence, std::chrono::milliseconds timeout,
           Start start)
      : state_(state) {
    begin(op, sequence, timeout, start);
  }
  /// Called once, by the thread that issues the operation. Copies everything it needs from the operation, which need
  /// not exist afterwards.
  void begin(const Operation& op, std::uint64_t sequence, std::chrono::milliseconds timeout, Start start);
  void started();
  void succeeded();
  void failed(const std::exception_ptr& error);

 private:
  void finish(const std::exception_ptr& error);
  void run_hooks(const std::vector<Hook>& hooks);

  detail::GroupState& state_;
  observe::GroupTrace* trace_ = nullptr;
  observe::RecordId record_{};
  std::unique_ptr<HookEvent> event_;  ///< if the group has hooks
};

}  // namespace cohort
