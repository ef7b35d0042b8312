// SPDX-License-Identifier: BSD-3-Clause
//
// How a group on an engine ends, if it does not end well: the first failure anywhere ends it everywhere, and every rank
// says the same of it.
//
// Whoever fails tells the others (failure_detector.h), who stop at once whatever they wait for. When it was a deadline that
// passed, every rank leaves a note of what it is in, or was in last, and those who are asked put the notes together:
// who is missing, or that ranks called different things.
#pragma once

#include <cohort/backend.h>
#include <cohort/store.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/common/failure.h"
#include "backends/common/failure_detector.h"
#include "core/run_with_deadline.h"
#include "group/mismatch.h"

namespace cohort {

class FailureCoordinator {
 public:
  struct Group {
    std::string id{};
    StorePtr store{};  ///< its own keys
    int rank = 0;
    int size = 1;
    /// Nothing is told and no notes are left by a part of a group that sees to it itself.
    bool is_part = false;
  };
  /// `stop` ends whatever waits in the engine; any thread, for good.
  FailureCoordinator(Group group, Deadline deadline, std::function<void(const Failure&)> stop);
  ~FailureCoordinator();
  FailureCoordinator(const FailureCoordinator&) = delete;
  FailureCoordinator& operator=(const FailureCoordinator&) = delete;

  /// Throws if the group is over.
  void check(const Call& call) {
    if (is_over_.load(std::memory_order_acquire)) throw_end(call);
  }

  /// For the time of an operation.
  class OpScope {
   public:
    OpScope(FailureCoordinator& coordinator, const OpSignature& signature, std::uint64_t sequence)
        : coordinator_(coordinator) {
      coordinator_.enter(signature, sequence);
    }
    ~OpScope() { coordinator_.exit(); }
    OpScope(const OpScope&) = delete;
    OpScope& operator=(const OpScope&) = delete;

   private:
    FailureCoordinator& coordinator_;
  };

  /// Something broke, and whoever knows why may be about to say so: waits a moment for that, then check()s.
  void await_news(const Call& call);
  /// Somebody else's word that the group is over.
  void adopt(const Failure& failure) { end(failure); }
  /// The group is over; what is thrown is what all agree on.
  [[noreturn]] void fail(const Failure& failure, const Call& call);
  [[noreturn]] void miss_deadline(const Call& call);
  void abort(std::string_view reason);
  /// In an orderly way; nobody is told.
  void leave();

  ErrorContext context(const Call& call) const;

 private:
  void enter(const OpSignature& signature, std::uint64_t sequence);
  void exit();
  bool end(const Failure& failure);
  void publish_current_op();
  void diagnose_timeout();
  [[noreturn]] void throw_end(const Call& call);

  const Group group_;
  const std::function<void(const Failure&)> stop_;
  StorePtr notes_;  ///< a handle of its own: the group's may be busy

  std::mutex mutex_;
  std::condition_variable over_;
  std::optional<Failure> failure_;
  bool is_examined_ = false;
  std::optional<OpSignature> last_;  ///< the operation this rank is in, or was in last
  std::uint64_t last_sequence_ = 0;
  bool is_in_ = false;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> is_alone_{false};  ///< the store did not take this rank's word: it is not asked anything either
  std::mutex diagnosis_mutex_;
  LateThreads late_;  ///< requests to the store, which may be what cannot be reached

  std::unique_ptr<FailureDetector> detector_;  ///< last: its thread uses the others
};

}  // namespace cohort
