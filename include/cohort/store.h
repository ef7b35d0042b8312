// SPDX-License-Identifier: BSD-3-Clause
//
// A Store is a small key-value service through which the processes of a job find each other. Keys are text, values are
// bytes. Waiting is built in: get() waits for the key.
//
//   auto store = std::make_shared<cohort::HashStore>();
//   store->set("address", "10.0.0.1:4242");
//   store->get("address");                         // waits up to the store's timeout (300 s unless set)
//   store->get("address", 2s);                     // waits up to two seconds
//   store->wait({"rank0", "rank1"}, 5s);
//   if (store->add("arrived", 1) == world_size) store->set("all", "");
//
// All operations are thread-safe and atomic per key. On a store with one connection (TcpStore) calls take turns: a
// get() that waits holds up other calls on the same object, so a second thread uses a clone().
//
// Which operation a store has is asked, not tried: has_queues(), has_extended_api().
#pragma once

#include <cohort/deadline.h>
#include <cohort/export.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

class Store;
using StorePtr = std::shared_ptr<Store>;

/// How long one call may take. Nothing said: the store's timeout. Zero: for ever.
class Within {
 public:
  Within() = default;
  template <class Rep, class Period>
  explicit(false) Within(std::chrono::duration<Rep, Period> timeout)
      : deadline_(Deadline::after_or_never(std::chrono::ceil<std::chrono::milliseconds>(timeout))) {}
  explicit(false) Within(Deadline deadline) : deadline_(deadline) {}

  Deadline or_after(std::chrono::milliseconds timeout) const {
    return deadline_ ? *deadline_ : Deadline::after_or_never(timeout);
  }

 private:
  std::optional<Deadline> deadline_;
};

class COHORT_API Store {
 public:
  static constexpr std::chrono::milliseconds default_timeout{300'000};
  using Keys = std::vector<std::string>;
  using Values = std::vector<std::string>;

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Sets or overwrites; wakes who waits for the key.
  void set(std::string_view key, std::string_view value, Within within = {});

  /// The value, once there is one. StoreTimeoutError if there is none in time; the store stays usable.
  std::string get(std::string_view key, Within within = {});

  /// Adds to a decimal number (a missing key counts as 0), returns the sum. An existing value that is no number, or a
  /// sum out of range, is a ValueError and changes nothing.
  std::int64_t add(std::string_view key, std::int64_t amount, Within within = {});

  /// Atomically: key missing and `expected` empty, or value equal to `expected` → sets and returns `desired`. Key
  /// missing and `expected` not empty → sets nothing, returns `expected`. Otherwise returns the value that is there.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Within within = {});

  /// Returns when all keys exist (a non-empty queue counts). StoreTimeoutError names the keys that are missing.
  void wait(const Keys& keys, Within within = {});

  /// Whether all keys exist now; never waits for one. An empty queue counts as absent.
  bool check(const Keys& keys, Within within = {});

  /// Removes value and queue; whether there was anything. FileStore always says true.
  bool delete_key(std::string_view key, Within within = {});

  /// How many keys have a value or a non-empty queue. A prefix does not filter.
  std::int64_t num_keys(Within within = {});

  /// Appends to the value, or creates it.
  void append(std::string_view key, std::string_view value, Within within = {});

  /// Waits for all keys, then returns their values in order; one timeout for the lot.
  Values multi_get(const Keys& keys, Within within = {});

  /// Sets each key to the value beside it; not atomic. Different lengths are a StoreError, nothing is set.
  void multi_set(const Keys& keys, const Values& values, Within within = {});

  /// First in, first out, per key, apart from set/get (but seen by wait and check). A push wakes one who pops.
  void queue_push(std::string_view key, std::string_view value, Within within = {});
  /// With `block` waits for a value; without, an empty queue is a QueueEmptyError.
  std::string queue_pop(std::string_view key, bool block = true, Within within = {});
  /// 0 for a queue that is not there.
  std::int64_t queue_len(std::string_view key, Within within = {});

  /// append, multi_get and multi_set are one operation each, not a loop over others.
  virtual bool has_extended_api() const = 0;
  virtual bool has_queues() const = 0;

  /// For calls that say no time of their own; 0 waits for ever. Negative is a ValueError.
  virtual void set_timeout(std::chrono::milliseconds timeout);
  virtual std::chrono::milliseconds timeout() const;

  /// Another handle to the same data that does not queue behind this one.
  virtual StorePtr clone() = 0;

 protected:
  Store() = default;
  friend class PrefixStore;

  /// What a store of one's own overrides. multi_get and multi_set have fallbacks; queues are refused unless overridden.
  /// append has none: a loop over compare_set loses one of two equal appends, since its answer does not say who set it.
  virtual void do_set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  virtual std::string do_get(std::string_view key, Deadline deadline) = 0;
  virtual std::int64_t do_add(std::string_view key, std::int64_t amount, Deadline deadline) = 0;
  virtual std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                     Deadline deadline) = 0;
  virtual void do_wait(const Keys& keys, Deadline deadline) = 0;
  virtual bool do_check(const Keys& keys, Deadline deadline) = 0;
  virtual bool do_delete_key(std::string_view key, Deadline deadline) = 0;
  virtual std::int64_t do_num_keys(Deadline deadline) = 0;
  virtual void do_append(std::string_view key, std::string_view value, Deadline deadline) = 0;
  virtual Values do_multi_get(const Keys& keys, Deadline deadline);
  virtual void do_multi_set(const Keys& keys, const Values& values, Deadline deadline);
  virtual void do_queue_push(std::string_view key, std::string_view value, Deadline deadline);
  virtual std::string do_queue_pop(std::string_view key, bool block, Deadline deadline);
  virtual std::int64_t do_queue_len(std::string_view key, Deadline deadline);

 private:
  Deadline deadline(const Within& within) const { return within.or_after(timeout()); }

  std::atomic<std::chrono::milliseconds> timeout_{default_timeout};
};

/// Sets a store's timeout for a scope.
class COHORT_API StoreTimeoutGuard {
 public:
  StoreTimeoutGuard(Store& store, std::chrono::milliseconds timeout) : store_(store), before_(store.timeout()) {
    store.set_timeout(timeout);
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): a timeout the store had is one it takes
  ~StoreTimeoutGuard() { store_.set_timeout(before_); }
  StoreTimeoutGuard(const StoreTimeoutGuard&) = delete;
  StoreTimeoutGuard& operator=(const StoreTimeoutGuard&) = delete;

 private:
  Store& store_;
  std::chrono::milliseconds before_;
};

}  // namespace cohort
