// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of a group on several hosts learn that one of them is gone, or has given up: through the job's store,
// each by itself. An engine only knows that a connection closed, and of a host that was cut off not even that.
//
// Each rank holds a connection to the store whose end, however it comes, the server makes known ("last will"), and
// another on which it waits for such news. The kernel ends connections to a host that is silent for `patience`. Two
// connections and a sleeping thread for each group, and nothing in the path of an operation.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "backends/common/failure.h"
#include "core/run_with_deadline.h"

namespace cohort {

class TcpStore;

std::string encode(const Failure& failure);
/// Whatever the text is, it is why the group is over.
Failure decode_failure(std::string_view text);
/// For aborting a part of a group: whoever meets it there finds the failure in the message of its error.
std::string as_reason(const Failure& failure);
std::optional<Failure> failure_in(std::string_view message);

class FailureDetector {
 public:
  static constexpr std::chrono::milliseconds patience{4000};

  /// Null where the store cannot tell (only a TcpStore can). `on_end` is called at most once, on a thread of the
  /// failure detector's own, and may call anything but the destructor.
  static std::unique_ptr<FailureDetector> start(const StorePtr& store, int rank, Deadline deadline,
                                                std::function<void(const Failure&)> on_end);
  /// Leaves in an orderly way: the others are not told.
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  /// Tells everybody; the first word stands. Keeps the caller a moment only, and is false if the store is out of reach.
  bool declare(const Failure& failure);

 private:
  explicit FailureDetector(std::function<void(const Failure&)> on_end) : on_end_(std::move(on_end)) {}
  void listen();
  void conclude(const Failure& failure);

  std::function<void(const Failure&)> on_end_;
  StorePtr liveness_store_;  ///< with its prefix
  TcpStore* liveness_ = nullptr;
  StorePtr listening_store_;
  TcpStore* listening_ = nullptr;

  std::atomic<bool> is_leaving_{false};
  std::atomic<bool> is_out_of_reach_{false};  ///< the store
  std::thread listener_;
  LateThreads late_;  ///< last: they use the others
};

}  // namespace cohort
