// SPDX-License-Identifier: BSD-3-Clause
//
// What a store holds, and who waits for it: the state machine behind HashStore (under a mutex) and the TCP server (on
// its event loop). Not thread-safe; never blocks; never throws but for memory.
//
// Waiting is exact and cheap: a waiter counts the keys it misses. A key that comes or goes adjusts the count of those
// who wait for it, O(1) each, so a set() costs nothing for waiters on other keys, and a wait for n keys costs n once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cohort {

class Table {
  struct Entry;
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };
  using Entries = std::unordered_map<std::string, Entry, TextHash, std::equal_to<>>;

 public:
  /// Waits for keys to exist. Fires once, from inside the operation that completed it; forget() it before it dies.
  class Waiter {
   public:
    explicit Waiter(std::function<void()> ready) : ready_(std::move(ready)) {}
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    friend class Table;
    std::function<void()> ready_;
    std::vector<Entries::iterator> on_;  ///< one per key, empty when not waiting
    std::size_t missing_ = 0;
    bool values_only_ = false;
  };

  /// Waits its turn to pop from a queue.
  class Popper {
   public:
    explicit Popper(std::function<void(std::string)> receive) : receive_(std::move(receive)) {}
    Popper(const Popper&) = delete;
    Popper& operator=(const Popper&) = delete;

   private:
    friend class Table;
    std::function<void(std::string)> receive_;
    std::optional<std::list<Popper*>::iterator> place_;
    Entries::iterator on_;
  };

  /// What an entry costs beside its key and value, roughly.
  static constexpr std::size_t entry_overhead = 128;

  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  void set(std::string_view key, std::string_view value);
  /// Null when there is no value (there may be a queue).
  const std::string* find(std::string_view key) const;
  /// Nothing when the value is no decimal number or the sum does not fit; the value is then as before.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t amount);
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  void append(std::string_view key, std::string_view value);
  /// A value or a non-empty queue.
  bool contains(std::string_view key) const;
  bool contains_all(const std::vector<std::string_view>& keys, bool values_only) const;
  bool erase(std::string_view key);
  std::size_t size() const noexcept { return present_; }
  /// Bytes of keys and values, for limits; what the containers themselves take is estimated per entry.
  std::size_t bytes() const noexcept { return bytes_; }

  void queue_push(std::string_view key, std::string value);
  std::optional<std::string> queue_pop(std::string_view key);
  std::size_t queue_len(std::string_view key) const;

  /// True: all there, the waiter was not enlisted. `values_only`: a queue does not count (get, multi_get).
  bool wait(const std::vector<std::string_view>& keys, bool values_only, Waiter& waiter);
  void forget(Waiter& waiter);
  /// Enlists at the end of those who pop from `key`.
  void wait_pop(std::string_view key, Popper& popper);
  void forget(Popper& popper);

 private:
  struct Entry {
    std::optional<std::string> value;
    std::deque<std::string> queue;
    std::vector<Waiter*> waiters;
    std::list<Popper*> poppers;

    bool present(bool values_only) const { return value.has_value() || (!values_only && !queue.empty()); }
  };
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
