// SPDX-License-Identifier: BSD-3-Clause
//
// What a store holds and who waits for it: the state machine behind HashStore (under a mutex) and the TCP server (on
// its event loop). It is not thread-safe, never blocks, and throws only when memory runs out; then the request that
// needed the memory has failed, the table is consistent, and callers that wait go on waiting.
//
// Waiting is exact and cheap: a caller that waits counts the keys it misses. A key that appears or disappears adjusts
// the counts of those who wait for it, O(1) each, so a set() costs nothing for callers that wait for other keys, and a
// wait for n keys costs n once.
#pragma once

#include <cohort/store_request.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/wire.h"

namespace cohort {

/// For maps with text keys that are looked up by std::string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};

/// The rule of add(): the sum of a value (null: no value) and `amount`; nullopt if the value is not a decimal number or
/// the sum does not fit.
std::optional<std::int64_t> sum_with(const std::string* value, std::int64_t amount);

/// The rule of compare_set(): whether the key is set.
inline bool matches(const std::string* value, std::string_view expected) {
  return value == nullptr ? expected.empty() : *value == expected;
}

class Table {
  struct Entry;
  using Entries = std::unordered_map<std::string, Entry, TextHash, std::equal_to<>>;

 public:
  /// Executes requests, one at a time.
  class Caller {
   public:
    /// `answer` is called exactly once for each request: inside execute() if the reply is ready, otherwise inside the
    /// operation that completes it or inside cancel(). The reply is valid during that call. `answer` must not change
    /// the table, and must not throw where the caller may wait while others execute: the exception would reach them.
    Caller(Table& table, std::function<void(const wire::Reply&)> answer) : table_(table), answer_(std::move(answer)) {}
    ~Caller() { withdraw(); }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    /// Takes a well-formed request (store_request.h) while none is waiting. Its keys and values need not outlive the
    /// call.
    void execute(const StoreRequest& request) { table_.execute(request, *this); }
    bool is_waiting() const { return !entries_.empty(); }
    /// Answers the waiting request, if there is one, with Status::cancelled.
    void cancel() { table_.cancel(*this); }
    /// Forgets the waiting request, if there is one, without an answer.
    void withdraw() { table_.withdraw(*this); }

   private:
    friend class Table;
    Table& table_;
    std::function<void(const wire::Reply&)> answer_;
    StoreOp op_ = StoreOp::wait;
    std::vector<std::string_view> keys_;      ///< as requested; they point to the keys of the entries
    std::vector<Entries::iterator> entries_;  ///< each one once; empty when nothing waits
    std::size_t missing_ = 0;
    std::size_t counted_ = 0;  ///< of the table's bytes, for the wait itself
  };

  /// What these cost beside the bytes of keys and values, rounded up: the nodes and slots of the containers, and what
  /// the allocator adds to each block.
  static constexpr std::size_t entry_overhead = 256;
  static constexpr std::size_t item_overhead = 96;  ///< a value in a queue
  static constexpr std::size_t wait_overhead = 80;  ///< a key that a caller waits for

  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  void set(std::string_view key, std::string_view value);
  /// Null if there is no value; there may still be a queue.
  const std::string* find(std::string_view key) const;
  /// Whether there is a value or a queue that is not empty.
  bool contains(std::string_view key) const;
  std::size_t size() const noexcept { return present_; }
  /// The memory that is held: keys, values and waits, with their overheads.
  std::size_t bytes() const noexcept { return bytes_; }
  /// By how much executing the request may raise bytes() at most.
  std::size_t cost_of(const StoreRequest& request) const;

 private:
  struct Entry {
    // Containers that take no memory while they are empty, since there are many entries.
    std::optional<std::string> value;
    std::list<std::string> queue;
    std::vector<Caller*> waiters;  ///< of get and wait
    std::list<Caller*> poppers;    ///< of queue_pop, in the order they came

    bool is_present(StoreOp to) const { return value.has_value() || (to != StoreOp::get && !queue.empty()); }
    bool is_unused() const { return !value && queue.empty() && waiters.empty() && poppers.empty(); }
  };

  void execute(const StoreRequest& request, Caller& caller);
  void cancel(Caller& caller);
  void withdraw(Caller& caller) noexcept;

  /// To a get a queue is not there; to everything else it is.
  bool contains(std::string_view key, StoreOp to) const;
  bool contains_all(const StoreRequest& request) const;
  std::optional<std::int64_t> add(std::string_view key, std::int64_t amount);
  std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  void append(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  void queue_push(std::string_view key, std::string value);
  std::optional<std::string> queue_pop(std::string_view key);
  std::size_t queue_len(std::string_view key) const;

  void enlist(const StoreRequest& request, Caller& caller);
  void enlist(std::string_view key, Caller& caller);
  void complete(Caller& caller);
  std::vector<std::string_view> values_of(const std::vector<std::string_view>& keys) const;

  Entries::iterator obtain(std::string_view key);
  void release_if_unused(Entries::iterator it);
  template <class Change>
  void change(Entries::iterator it, Change&& apply);
  void put(Entries::iterator it, std::string value);

  Entries entries_;
  std::size_t present_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace cohort
