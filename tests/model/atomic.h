// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "model/memory.h"

namespace cohort::model {

namespace detail {

/// Signed values keep their sign, so that traces show them correctly.
template <class T>
Bits to_bits(T value) {
  if constexpr (std::is_enum_v<T>) {
    return to_bits(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<Bits>(value);
  } else {
    Bits bits = 0;
    std::memcpy(&bits, &value, sizeof(value));
    return bits;
  }
}

template <class T>
T from_bits(Bits bits) {
  if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return static_cast<T>(bits);
  } else {
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
}

using Change = Bits (*)(Bits value, Bits operand);

LocationId add_atomic(Bits initial);
void name_atomic(LocationId location, std::string name);
Bits load(LocationId location, std::memory_order order);
void store(LocationId location, Bits value, std::memory_order order);
Bits modify(LocationId location, const char* operation, Change change, Bits operand, std::memory_order order);
bool compare_exchange(LocationId location, Bits& expected, Bits desired, std::memory_order success,
                      std::memory_order failure, bool weak);

LocationId add_plain();
void name_plain(LocationId location, std::string name);
void access_plain(LocationId location, bool write);

}  // namespace detail

/// Stands for std::atomic in code that takes its atomics as a template parameter. Exists only inside an execution.
template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Bits));

 public:
  using value_type = T;

  Atomic() : Atomic(T{}) {}
  Atomic(T initial) : location_(detail::add_atomic(detail::to_bits(initial))) {}  // NOLINT: as std::atomic
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;
  ~Atomic() = default;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return detail::from_bits<T>(detail::load(location_, order));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    detail::store(location_, detail::to_bits(value), order);
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
    return modify(
        "exchange", [](Bits, Bits operand) { return operand; }, value, order);
  }
  T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) {
    return modify(
        "fetch_add", [](Bits a, Bits b) { return wrapped(a + b); }, value, order);
  }
  T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) {
    return modify(
        "fetch_sub", [](Bits a, Bits b) { return wrapped(a - b); }, value, order);
  }
  T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst) {
    return modify(
        "fetch_or", [](Bits a, Bits b) { return wrapped(a | b); }, value, order);
  }

  bool compare_exchange_strong(T& expected, T desired, std::memory_order success, std::memory_order failure) {
    return compare_exchange(expected, desired, success, failure, false);
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order = std::memory_order_seq_cst) {
    return compare_exchange(expected, desired, order, without_release(order), false);
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order failure) {
    return compare_exchange(expected, desired, success, failure, true);
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order order = std::memory_order_seq_cst) {
    return compare_exchange(expected, desired, order, without_release(order), true);
  }

  LocationId location() const { return location_; }

 private:
  /// Arithmetic on all 64 bits, truncated to T, equals T's arithmetic modulo 2^n as in std::atomic, and never
  /// overflows.
  static Bits wrapped(Bits bits) {
    static_assert(std::is_integral_v<T>);
    return detail::to_bits(detail::from_bits<T>(bits));
  }

  static constexpr std::memory_order without_release(std::memory_order order) {
    if (order == std::memory_order_acq_rel) return std::memory_order_acquire;
    return order == std::memory_order_release ? std::memory_order_relaxed : order;
  }

  T modify(const char* operation, detail::Change change, T value, std::memory_order order) {
    return detail::from_bits<T>(detail::modify(location_, operation, change, detail::to_bits(value), order));
  }

  bool compare_exchange(T& expected, T desired, std::memory_order success, std::memory_order failure, bool weak) {
    Bits seen = detail::to_bits(expected);
    const bool exchanged = detail::compare_exchange(location_, seen, detail::to_bits(desired), success, failure, weak);
    if (!exchanged) expected = detail::from_bits<T>(seen);
    return exchanged;
  }

  LocationId location_;
};

/// Ordinary memory that fails the execution if accesses of two threads race. Used like a T.
template <class T>
class Plain {
 public:
  Plain() : Plain(T{}) {}
  Plain(T initial) : value_(std::move(initial)), location_(detail::add_plain()) {}  // NOLINT: stands for a T
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;
  ~Plain() = default;

  Plain& operator=(T value) {
    detail::access_plain(location_, true);
    value_ = std::move(value);
    return *this;
  }
  operator T() const {  // NOLINT: stands for a T
    detail::access_plain(location_, false);
    return value_;
  }

  LocationId location() const { return location_; }

 private:
  T value_;
  LocationId location_;
};

/// std::atomic_thread_fence.
void fence(std::memory_order order);

/// Sets the name of the location in traces.
template <class T>
void name(const Atomic<T>& atomic, std::string text) {
  detail::name_atomic(atomic.location(), std::move(text));
}
template <class T>
void name(const Plain<T>& plain, std::string text) {
  detail::name_plain(plain.location(), std::move(text));
}

}  // namespace cohort::model
