// SPDX-License-Identifier: BSD-3-Clause
//
// How a group on an engine fails: the first failure on any rank ends the group on all ranks, and every rank reports the
// same failure.
//
// A rank that fails tells the others (failure_detector.h), which stop whatever they wait for at once. If a deadline
// passed, or a part of the group found that operations differ, every rank publishes its latest operations, and a rank
// that must report the error combines these notes: it finds the first operation that ranks disagree about, or else the
// ranks that are missing. Ranks that have waited in one operation for about a second compare their notes already then,
// so that ranks which called different operations do not wait for the deadline.
#pragma once

#include <cohort/backend.h>
#include <cohort/store.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/common/failure.h"
#include "backends/common/failure_detector.h"
#include "backends/common/recent_ops.h"
#include "backends/common/stall_watch.h"
#include "core/run_with_deadline.h"
#include "group/mismatch.h"

namespace cohort {

class FailureCoordinator {
 public:
  struct Group {
    std::string id{};
    StorePtr store{};  ///< with keys of the group's own
    int rank = 0;
    int size = 1;
    /// A part of a larger group neither tells the other ranks nor publishes notes: the larger group does both.
    bool is_part = false;
  };
  /// `stop` ends whatever waits in the engine, for good; it may be called on any thread.
  FailureCoordinator(Group group, Deadline deadline, std::function<void(const Failure&)> stop);
  ~FailureCoordinator();
  FailureCoordinator(const FailureCoordinator&) = delete;
  FailureCoordinator& operator=(const FailureCoordinator&) = delete;

  /// Throws if the group has failed.
  void check(const Call& call) {
    if (is_over_.load(std::memory_order_acquire)) throw_end(call);
  }

  /// Marks this rank as being in a collective for a scope.
  class OpScope {
   public:
    OpScope(FailureCoordinator& coordinator, const OpSignature& signature, std::uint64_t sequence)
        : coordinator_(coordinator), number_(coordinator.enter(signature, sequence)) {}
    ~OpScope() { coordinator_.exit(number_); }
    OpScope(const OpScope&) = delete;
    OpScope& operator=(const OpScope&) = delete;

   private:
    FailureCoordinator& coordinator_;
    const std::uint64_t number_;
  };
  /// For operations that outlive the call which enqueues them: returns a number for exit(). They end in the order in
  /// which they were entered.
  std::uint64_t enter(const OpSignature& signature, std::uint64_t sequence);
  void exit(std::uint64_t number);

  /// Something failed, and a rank that knows the reason may be about to publish it: waits a moment for that, then calls
  /// check().
  void await_news(const Call& call);
  /// Why the group has failed, if it has.
  std::optional<Failure> failure();
  /// The same with what the other ranks were doing, where that matters: asking them takes a moment. The group has
  /// failed.
  Failure explain();
  /// The ranks that left the group in good order, as far as the store knows. Asks the store, which may take a moment.
  std::vector<Departure> departures();
  /// Takes over a failure that another part has reported.
  void adopt(const Failure& failure) { end(failure); }
  /// Ends the group and throws the failure that all ranks agree on.
  [[noreturn]] void fail(const Failure& failure, const Call& call);
  [[noreturn]] void miss_deadline(const Call& call);
  void abort(std::string_view reason);
  /// Leaves the group in good order: no other rank's operation ends because of it.
  void leave();
  /// Which of these ranks have died or left. Throws if the store cannot be reached.
  std::vector<int> lost_among(std::span<const int> ranks) const;

  ErrorContext context(const Call& call) const;

 private:
  bool end(const Failure& failure);
  void publish_recent_ops();
  std::string own_note();
  void compare_with_waiting_ranks();
  void diagnose();
  [[noreturn]] void throw_end(const Call& call);

  const Group group_;
  const std::function<void(const Failure&)> stop_;
  StorePtr notes_;  ///< a connection of its own, because the group's may be busy

  std::mutex mutex_;
  std::condition_variable over_;
  std::optional<Failure> failure_;
  bool is_examined_ = false;
  RecentOps recent_;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> is_alone_{false};   ///< the store did not take this rank's failure, so it is not queried either
  std::atomic<bool> left_note_{false};  ///< in the store, for ranks that wait to compare with
  std::mutex diagnosis_mutex_;
  BrokenGroup broken_;
  LateThreads late_;  ///< requests to the store, which may be unreachable

  // Last, because their threads use the other members.
  std::unique_ptr<FailureDetector> detector_;
  std::unique_ptr<StallWatch> stall_watch_;
};

}  // namespace cohort
