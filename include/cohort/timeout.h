// SPDX-License-Identifier: BSD-3-Clause
//
// How long one call may take. Every function that waits takes a Timeout, which means the same everywhere:
//
//   pg->all_reduce(x);                             // the group's own timeout
//   pg->all_reduce(x, {.timeout = 5s});            // five seconds
//   store->get("key", cohort::no_timeout);         // without limit
//   store->get("key", deadline);                   // until a point in time, as part of a longer call
//
// A timeout must be positive. Zero and negative durations throw ValueError before anything has happened.
#pragma once

#include <cohort/deadline.h>
#include <cohort/export.h>

#include <chrono>
#include <variant>

namespace cohort {

/// No limit.
inline constexpr std::chrono::milliseconds no_timeout = std::chrono::milliseconds::max();

class COHORT_API Timeout {
 public:
  /// The default timeout of the group or store that is called.
  Timeout() = default;
  template <class Rep, class Period>
  explicit(false) Timeout(std::chrono::duration<Rep, Period> duration) : value_(checked(duration)) {}
  explicit(false) Timeout(Deadline deadline) : value_(deadline) {}

  bool is_default() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  /// The given duration, the time left until the given deadline, or `otherwise` if neither was given.
  std::chrono::milliseconds duration_or(std::chrono::milliseconds otherwise) const {
    if (const auto* const duration = std::get_if<std::chrono::milliseconds>(&value_)) return *duration;
    const auto* const deadline = std::get_if<Deadline>(&value_);
    if (deadline == nullptr) return otherwise;
    if (deadline->is_never()) return no_timeout;
    return std::chrono::ceil<std::chrono::milliseconds>(deadline->remaining());
  }
  /// The same as a deadline, counted from now.
  Deadline deadline_or(std::chrono::milliseconds otherwise) const {
    if (const auto* const deadline = std::get_if<Deadline>(&value_)) return *deadline;
    return Deadline::after(duration_or(otherwise));
  }

 private:
  template <class Rep, class Period>
  static std::chrono::milliseconds checked(std::chrono::duration<Rep, Period> duration) {
    // Long durations of a coarser unit would overflow in the conversion to milliseconds, and a floating-point duration
    // may be no number.
    const std::chrono::duration<double, std::milli> exact(duration);
    if (!(exact > exact.zero())) refuse(exact.count());
    if (exact >= std::chrono::duration<double, std::milli>(no_timeout)) return no_timeout;
    return std::chrono::ceil<std::chrono::milliseconds>(duration);
  }
  [[noreturn]] static void refuse(double milliseconds);

  std::variant<std::monostate, std::chrono::milliseconds, Deadline> value_;
};

}  // namespace cohort
