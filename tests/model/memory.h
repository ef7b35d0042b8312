// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cohort::model {

/// The value of an atomic of any type.
using Bits = std::uint64_t;
using ThreadId = std::size_t;
using LocationId = std::uint32_t;
/// The position of a store in its location's modification order; 0 is the initial value.
using StoreIndex = std::uint32_t;

/// Thread 0 runs the setup and the final check.
inline constexpr ThreadId main_thread = 0;
inline constexpr std::size_t max_threads = 9;

/// What happened before a point of a thread: a vector clock, which decides about data races, and the oldest store of
/// each location that coherence still allows it to read. The second follows from the first (a store or load that
/// happened before raises the floor to what it wrote or read), and is kept beside it because loads need nothing else.
class Knowledge {
 public:
  void join(const Knowledge& other);
  void join_floors(const Knowledge& other);
  void raise_floor(LocationId location, StoreIndex store);
  StoreIndex floor(LocationId location) const { return location < floors_.size() ? floors_[location] : 0; }

  std::uint32_t time_of(ThreadId thread) const { return clock_[thread]; }
  void advance(ThreadId thread) { ++clock_[thread]; }

 private:
  std::array<std::uint32_t, max_threads> clock_{};
  std::vector<StoreIndex> floors_;
};

/// The memory of one execution: atomic locations with their modification orders, plain ones with their last accesses,
/// and what every thread knows. It determines what a load may return and carries out what was chosen; it does not
/// choose. The rules are those of explorer.h.
class Memory {
 public:
  Memory();

  LocationId add_atomic(Bits initial);
  StoreIndex newest(LocationId location) const;
  Bits value(LocationId location, StoreIndex store) const { return atomics_[location].stores[store].value; }
  /// The oldest store that a load may return; every newer one is permitted, too.
  StoreIndex oldest_readable(ThreadId thread, LocationId location, std::memory_order order) const;

  void load(ThreadId thread, LocationId location, StoreIndex store, std::memory_order order);
  void store(ThreadId thread, LocationId location, Bits value, std::memory_order order);
  /// Reads the newest store and appends one directly after it.
  void modify(ThreadId thread, LocationId location, Bits value, std::memory_order order);
  void fence(ThreadId thread, std::memory_order order);
  /// Everything in `from` so far happens before what `to` does from now on.
  void synchronize(ThreadId from, ThreadId to);

  struct Access {
    ThreadId thread = main_thread;
    std::uint32_t time = 0;  ///< the thread's clock, counted from 1; 0 means that there was no access
    std::size_t event = 0;   ///< the caller's number for it
    bool write = false;
  };
  LocationId add_plain();
  /// Records the access; returns an earlier one that it races with.
  std::optional<Access> access_plain(ThreadId thread, LocationId location, bool write, std::size_t event);

 private:
  struct Store {
    Bits value = 0;
    Knowledge released;  ///< what an acquiring reader learns
  };
  struct AtomicLocation {
    std::vector<Store> stores;
  };
  struct PlainLocation {
    Access write;
    std::array<Access, max_threads> reads{};
  };
  struct Thread {
    Knowledge known;
    Knowledge at_release_fence;  ///< what relaxed stores after a release fence publish
    Knowledge read_relaxed;      ///< what an acquire fence will learn
  };

  void append(ThreadId thread, LocationId location, Bits value, std::memory_order order, Knowledge released);

  std::vector<AtomicLocation> atomics_;
  std::vector<PlainLocation> plains_;
  std::array<Thread, max_threads> threads_;
  /// For each location, the newest store that a seq_cst operation so far has written or read, or that happened before a
  /// seq_cst fence. Later seq_cst loads, and loads after later fences, may return nothing older.
  Knowledge sequential_;
};

}  // namespace cohort::model
