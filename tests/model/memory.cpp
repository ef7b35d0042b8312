// SPDX-License-Identifier: BSD-3-Clause
#include "model/memory.h"

#include <algorithm>
#include <utility>

namespace cohort::model {

namespace {

bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_consume ||
         order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

}  // namespace

void Knowledge::join(const Knowledge& other) {
  for (ThreadId thread = 0; thread < clock_.size(); ++thread) {
    clock_[thread] = std::max(clock_[thread], other.clock_[thread]);
  }
  join_floors(other);
}

void Knowledge::join_floors(const Knowledge& other) {
  if (floors_.size() < other.floors_.size()) floors_.resize(other.floors_.size());
  for (std::size_t location = 0; location < other.floors_.size(); ++location) {
    floors_[location] = std::max(floors_[location], other.floors_[location]);
  }
}

void Knowledge::raise_floor(LocationId location, StoreIndex store) {
  if (floors_.size() <= location) floors_.resize(location + std::size_t{1});
  floors_[location] = std::max(floors_[location], store);
}

Memory::Memory() {
  for (ThreadId thread = 0; thread < threads_.size(); ++thread) threads_[thread].known.advance(thread);
}

LocationId Memory::add_atomic(Bits initial) {
  atomics_.emplace_back().stores.push_back({.value = initial, .released = {}});
  return static_cast<LocationId>(atomics_.size() - 1);
}

StoreIndex Memory::newest(LocationId location) const {
  return static_cast<StoreIndex>(atomics_[location].stores.size() - 1);
}

StoreIndex Memory::oldest_readable(ThreadId thread, LocationId location, std::memory_order order) const {
  const StoreIndex coherent = threads_[thread].known.floor(location);
  return order == std::memory_order_seq_cst ? std::max(coherent, sequential_.floor(location)) : coherent;
}

void Memory::load(ThreadId thread, LocationId location, StoreIndex store, std::memory_order order) {
  auto& self = threads_[thread];
  self.known.raise_floor(location, store);
  const auto& released = atomics_[location].stores[store].released;
  if (acquires(order)) {
    self.known.join(released);
  } else {
    self.read_relaxed.join(released);
  }
  if (order == std::memory_order_seq_cst) sequential_.raise_floor(location, store);
}

void Memory::store(ThreadId thread, LocationId location, Bits value, std::memory_order order) {
  append(thread, location, value, order, {});
}

void Memory::modify(ThreadId thread, LocationId location, Bits value, std::memory_order order) {
  const StoreIndex read = newest(location);
  load(thread, location, read, order);
  // A read-modify-write of any order continues the release sequence of what it read.
  append(thread, location, value, order, atomics_[location].stores[read].released);
}

void Memory::append(ThreadId thread, LocationId location, Bits value, std::memory_order order, Knowledge released) {
  auto& self = threads_[thread];
  auto& stores = atomics_[location].stores;
  const auto index = static_cast<StoreIndex>(stores.size());
  self.known.raise_floor(location, index);
  released.join(releases(order) ? self.known : self.at_release_fence);
  stores.push_back({.value = value, .released = std::move(released)});
  if (order == std::memory_order_seq_cst) sequential_.raise_floor(location, index);
  // What the thread does from here on is not published by this store.
  self.known.advance(thread);
}

void Memory::fence(ThreadId thread, std::memory_order order) {
  auto& self = threads_[thread];
  if (acquires(order)) self.known.join(self.read_relaxed);
  if (order == std::memory_order_seq_cst) {
    // Fences order what happened before one against what comes after a later one, but do not synchronize: no clocks
    // join.
    sequential_.join_floors(self.known);
    self.known.join_floors(sequential_);
  }
  if (releases(order)) {
    self.at_release_fence = self.known;
    self.known.advance(thread);
  }
}

void Memory::synchronize(ThreadId from, ThreadId to) {
  threads_[to].known.join(threads_[from].known);
  threads_[from].known.advance(from);
}

LocationId Memory::add_plain() {
  plains_.emplace_back();
  return static_cast<LocationId>(plains_.size() - 1);
}

std::optional<Memory::Access> Memory::access_plain(ThreadId thread, LocationId location, bool write,
                                                   std::size_t event) {
  auto& plain = plains_[location];
  const auto& known = threads_[thread].known;
  const auto races = [&](const Access& earlier) {
    return earlier.time != 0 && earlier.thread != thread && known.time_of(earlier.thread) < earlier.time;
  };
  std::optional<Access> conflict;
  if (races(plain.write)) conflict = plain.write;
  if (write) {
    for (const auto& read : plain.reads) {
      if (!conflict && races(read)) conflict = read;
    }
  }
  const Access access{.thread = thread, .time = known.time_of(thread), .event = event, .write = write};
  (write ? plain.write : plain.reads[thread]) = access;
  return conflict;
}

}  // namespace cohort::model
