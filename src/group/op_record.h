// SPDX-License-Identifier: BSD-3-Clause
//
// The bookkeeping around one operation: the flight recorder's entry and the user's hooks.
#pragma once

#include <cohort/operation.h>
#include <cohort/process_group.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "observe/recorder.h"

namespace cohort {

/// Made by the thread that issues the operation. The constructor copies everything it needs from the operation, which
/// need not exist afterwards.
class OpRecord {
 public:
  OpRecord(detail::GroupState& state, const Operation& op, std::uint64_t sequence, std::chrono::milliseconds timeout,
           bool starts_now);
  void started();
  void succeeded();
  void failed(const std::exception_ptr& error);

 private:
  void finish(const std::exception_ptr& error);
  void run_hooks(const std::vector<Hook>& hooks);

  detail::GroupState& state_;
  observe::GroupTrace* trace_;
  observe::RecordId record_{};
  std::optional<HookEvent> event_;  ///< set if the group has hooks
};

}  // namespace cohort
