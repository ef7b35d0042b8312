// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks that make a group learn that one of them will not come: it has died, or it cannot take part. Without
// that they would wait for it until their deadline.
//
// It is a failure detector (failure_detector.h) with keys of its own, from the moment at which a rank begins to join
// until the group is made. Only a TcpStore notices that a process has ended; with another store nothing is noticed
// before the deadline.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>
#include <cohort/store.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backends/common/failure.h"
#include "backends/common/failure_detector.h"

namespace cohort {

/// How often those who wait ask whether there is a failure.
inline constexpr std::chrono::milliseconds failure_check_period{50};

/// Calls `ask(deadline)`, which waits for a key, in slices, until it returns without a StoreTimeoutError, there is
/// failure_check, or the deadline has passed.
template <class Ask>
auto ask_store(Deadline deadline, const FailureCheck& failure_check, const Ask& ask) {
  for (;;) {
    try {
      return ask(failure_check ? earlier(deadline, Deadline::after(failure_check_period)) : deadline);
    } catch (const StoreTimeoutError&) {
      if (!failure_check || deadline.expired()) throw;
    }
    if (const auto failure = failure_check()) throw_failure(*failure, {.op = "new_group"});
  }
}

/// Every rank's value, in rank order. The keys begin with `what`. Throws OperationTimeoutError that names a rank whose
/// value did not come.
///
/// Each rank asks for all values at once. Where a store is asked for one key at a time, rank 0 alone does so and puts
/// them together for the others: as many requests as there are ranks, and not their square.
std::vector<std::string> exchange_values(Store& store, std::string_view what, const std::string& mine, int rank,
                                         int size, Deadline deadline, const FailureCheck& failure_check);

/// Deletes a key that is not needed any more, once the group is decided: whatever goes wrong is no error.
void delete_key_quietly(Store& store, const std::string& key);

/// The keys that exchange_values() writes.
Store::Keys keys_of_exchange(std::string_view what, int size);

/// A rank that is joining a group.
class Joining {
 public:
  /// `keys` are those through which the ranks make the group; the last one that has joined deletes them.
  Joining(const StorePtr& store, int rank, int size, Deadline deadline, const Store::Keys& keys);
  ~Joining();
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  /// For those who wait for other ranks. It may outlive this object.
  FailureCheck failure_check() const;

  /// Runs `make`, which makes this rank's part of the group. If it fails, the other ranks are told why, and what it
  /// throws is the failure that was known first.
  template <class Make>
  auto run(const Make& make) {
    try {
      return make();
    } catch (const DistributedError& e) {
      explain(e);
      throw;
    } catch (const Error& e) {
      give_up(e);
      throw;
    }
  }

 private:
  struct Known {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Failure> failure;
  };
  /// Throws the failure of another rank if there is one; otherwise tells the others about this one.
  void explain(const DistributedError& error);
  void give_up(const Error& error);

  const int rank_;
  const std::shared_ptr<Known> known_ = std::make_shared<Known>();
  std::unique_ptr<FailureDetector> detector_;
  Store::Keys own_keys_;  ///< of a rank that is alone
  StorePtr store_;        ///< likewise
};

/// Calls `stop` on a thread of its own once there is a failure or the deadline has passed, unless it is destroyed
/// before: for calls that wait for other ranks without asking.
class FailureWatch {
 public:
  FailureWatch(Deadline deadline, FailureCheck failure_check, std::function<void()> stop);
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  /// What there was, if it was a failure that made it stop.
  std::optional<Failure> failure();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::optional<Failure> failure_;
  std::thread thread_;  ///< last, because it uses the other members
};

}  // namespace cohort
