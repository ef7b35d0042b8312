// SPDX-License-Identifier: BSD-3-Clause
//
// A Store is a small key-value service through which the processes of a job find each other. Keys are text, values are
// bytes, and get() waits until the key exists.
//
//   auto store = std::make_shared<cohort::HashStore>();
//   store->set("address", "10.0.0.1:4242");
//   store->get("address");                         // waits up to the store's timeout (300 s unless set)
//   store->get("address", 2s);                     // waits up to two seconds
//   store->wait({"rank0", "rank1"}, cohort::no_timeout);
//   if (store->add("arrived", 1) == world_size) store->set("all", "");
//
// All operations are thread-safe and atomic per key. A store with one connection (TcpStore) executes one call at a
// time: while a get() waits, other calls on the same object wait for it. A second thread should use a clone().
//
// Not every store has every operation: has_queues() and has_extended_api() tell.
#pragma once

#include <cohort/deadline.h>
#include <cohort/export.h>
#include <cohort/store_request.h>
#include <cohort/timeout.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

class Store;
using StorePtr = std::shared_ptr<Store>;

class COHORT_API Store {
 public:
  static constexpr std::chrono::milliseconds default_timeout{300'000};
  using Keys = std::vector<std::string>;
  using Values = std::vector<std::string>;

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Sets or overwrites the value and wakes everyone who waits for the key.
  void set(std::string_view key, std::string_view value, Timeout timeout = {});

  /// Waits until the key has a value and returns it. Throws StoreTimeoutError if that takes too long; the store stays
  /// usable.
  std::string get(std::string_view key, Timeout timeout = {});

  /// Adds to a decimal number (a missing key counts as 0) and returns the sum. Throws ValueError and changes nothing if
  /// the value is not a number or the sum is out of range.
  std::int64_t add(std::string_view key, std::int64_t amount, Timeout timeout = {});

  /// Atomically compares and sets. If the value equals `expected`, or the key is missing and `expected` is empty, sets
  /// the key to `desired` and returns `desired`. If the key is missing and `expected` is not empty, sets nothing and
  /// returns `expected`. Otherwise returns the current value.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Timeout timeout = {});

  /// Returns when all keys exist; a queue that is not empty counts. StoreTimeoutError names the missing keys.
  void wait(const Keys& keys, Timeout timeout = {});

  /// Whether all keys exist now. Never waits for a key; an empty queue counts as missing.
  bool check(const Keys& keys, Timeout timeout = {});

  /// Removes the value and the queue. Returns whether there was anything to remove; a FileStore always returns true.
  bool delete_key(std::string_view key, Timeout timeout = {});

  /// The number of keys that have a value or a queue that is not empty. A PrefixStore counts the keys of the whole
  /// underlying store.
  std::int64_t num_keys(Timeout timeout = {});

  /// Appends to the value, or creates it.
  void append(std::string_view key, std::string_view value, Timeout timeout = {});

  /// Waits for all keys, then returns their values in order. The timeout is for the whole call.
  Values multi_get(const Keys& keys, Timeout timeout = {});

  /// Sets each key to the value beside it; not atomic as a whole. Throws StoreError and sets nothing if there are not
  /// as many values as keys.
  void multi_set(const Keys& keys, const Values& values, Timeout timeout = {});

  /// Each key has a first-in, first-out queue beside its value. get() does not see it; wait() and check() do. A push
  /// wakes one caller of queue_pop(). Stores without queues throw NotSupportedError.
  void queue_push(std::string_view key, std::string_view value, Timeout timeout = {});
  /// Removes and returns the oldest value. If the queue is empty, waits for a value if `block` is true and throws
  /// QueueEmptyError otherwise.
  std::string queue_pop(std::string_view key, bool block = true, Timeout timeout = {});
  /// 0 for a queue that does not exist.
  std::int64_t queue_len(std::string_view key, Timeout timeout = {});

  /// Whether multi_get and multi_set are one operation of this store. Otherwise they are loops over get and set.
  virtual bool has_extended_api() const = 0;
  virtual bool has_queues() const = 0;

  /// The timeout of calls that are given none. Throws ValueError unless it is positive.
  virtual void set_timeout(std::chrono::milliseconds timeout);
  virtual std::chrono::milliseconds timeout() const;

  /// Another handle to the same data. Its calls do not wait for those of this one.
  virtual StorePtr clone() = 0;

 protected:
  Store() = default;

  /// For stores that wrap another one.
  static StoreReply execute_on(Store& store, const StoreRequest& request, Deadline deadline) {
    return store.execute(request, deadline);
  }

 private:
  /// What a store of your own implements, see store_request.h. Returns or throws by the deadline: StoreTimeoutError if
  /// it waited for a key until then. Queue operations arrive only if has_queues() is true. Every store has to implement
  /// append: a loop over compare_set would lose one of two equal appends, because its result does not tell which caller
  /// has set the value.
  virtual StoreReply execute(const StoreRequest& request, Deadline deadline) = 0;

  /// execute(), with what every store has in common: queues refused where there are none, replies checked.
  StoreReply call(const StoreRequest& request, Timeout timeout);

  std::atomic<std::chrono::milliseconds> timeout_{default_timeout};
};

/// Sets a store's timeout for a scope.
class COHORT_API StoreTimeoutGuard {
 public:
  StoreTimeoutGuard(Store& store, std::chrono::milliseconds timeout) : store_(store), before_(store.timeout()) {
    store.set_timeout(timeout);
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): the store accepts a timeout that it had before
  ~StoreTimeoutGuard() { store_.set_timeout(before_); }
  StoreTimeoutGuard(const StoreTimeoutGuard&) = delete;
  StoreTimeoutGuard& operator=(const StoreTimeoutGuard&) = delete;

 private:
  Store& store_;
  std::chrono::milliseconds before_;
};

}  // namespace cohort
