// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>

#include <atomic>
#include <mutex>
#include <string>

namespace cohort {

/// Whether a group can still be used, and if not, why. Safe to use from any thread.
class GroupStatus {
 public:
  explicit GroupStatus(std::string group) : group_(std::move(group)) {}

  /// The group cannot be used any more. The first reason counts.
  void end(std::string reason) {
    const std::lock_guard lock(mutex_);
    if (is_ended_.load(std::memory_order_relaxed)) return;
    reason_ = std::move(reason);
    is_ended_.store(true, std::memory_order_release);
  }
  bool is_ended() const noexcept { return is_ended_.load(std::memory_order_acquire); }
  /// Throws an AbortedError with the reason once the group has ended.
  void check(const Call& call) const {
    if (is_ended()) [[unlikely]]
      refuse(call);
  }

  ErrorContext context(const Call& call) const {
    return {.group = group_, .op = std::string(to_string(call.op())), .sequence = call.sequence()};
  }

 private:
  [[noreturn]] void refuse(const Call& call) const {
    const std::lock_guard lock(mutex_);
    throw AbortedError(reason_, context(call));
  }

  const std::string group_;
  std::atomic<bool> is_ended_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace cohort
