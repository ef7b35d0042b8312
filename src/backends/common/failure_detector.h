// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of a group on several hosts learn that one of them is gone or has failed: each by itself, through the
// job's store. An engine only sees that a connection was closed, and if a host was cut off not even that.
//
// Each rank holds one connection to the store whose end, for whatever reason, the server publishes ("last will"), and
// another on which it waits for such news. The kernel closes connections to a host that is silent for
// `keepalive_timeout`. The cost is two connections and a sleeping thread per group, and nothing in the path of an operation.
//
// A rank that leaves in good order, also by exit(), withdraws its last will and adds itself to the list of those that
// left, which a rank reads that misses it. The last one to leave deletes the keys of the group; if a rank never leaves,
// because it died, they stay.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/common/failure.h"
#include "backends/common/leave_at_exit.h"
#include "core/run_with_deadline.h"

namespace cohort {

class TcpStore;

class FailureDetector {
 public:
  static constexpr std::chrono::milliseconds keepalive_timeout{4000};
  /// The key that exists once a rank has died. Unlike the news of the group's end, it is kept for each rank, so that
  /// survivors can find out who is left.
  static std::string gone_key(int rank);

  /// Null if the store cannot report disconnects (only a TcpStore can). `on_end` is called at most once, on a thread of
  /// the failure detector's own, and may call anything but the destructor. `also_deleted` are the full names of further
  /// keys that nobody needs once the last rank has left.
  static std::unique_ptr<FailureDetector> start(const StorePtr& store, int rank, int size, Deadline deadline,
                                                std::function<void(const Failure&)> on_end,
                                                Store::Keys also_deleted = {});
  /// Leaves in good order: no other rank's operation ends because of it.
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  /// Tells all ranks; only the first failure counts. Blocks the caller for a moment only, and returns false if the
  /// store cannot be reached.
  bool declare(const Failure& failure);

  /// The key under which a rank publishes what it is doing (failure_coordinator.h); deleted with the others.
  static std::string note_key(int rank);
  /// The ranks that have left in good order, as `store` says, which has the keys of the group.
  static std::vector<Departure> left(Store& store, Deadline deadline);

 private:
  FailureDetector(int rank, int size, StorePtr liveness, StorePtr listening, std::function<void(const Failure&)> on_end,
                  Store::Keys also_deleted);
  void listen();
  void conclude(const Failure& failure);
  void leave() noexcept;
  void delete_keys(Deadline deadline);

  const int rank_;
  const int size_;
  std::function<void(const Failure&)> on_end_;
  const Store::Keys also_deleted_;
  StorePtr liveness_store_;  ///< including its prefix
  TcpStore* liveness_ = nullptr;
  StorePtr listening_store_;
  TcpStore* listening_ = nullptr;

  std::atomic<bool> is_leaving_{false};
  std::atomic<bool> has_ended_{false};        ///< whether a failure was declared
  std::atomic<bool> is_out_of_reach_{false};  ///< whether the store is
  std::thread listener_;
  LateThreads late_;                    ///< near the end, because these threads use the other members
  std::optional<LeaveAtExit> at_exit_;  ///< likewise
};

}  // namespace cohort
