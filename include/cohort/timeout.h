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
#include <cstdint>

namespace cohort {

/// No limit.
inline constexpr std::chrono::milliseconds no_timeout = std::chrono::milliseconds::max();

class COHORT_API Timeout {
 public:
  /// The default timeout of the group or store that is called.
  Timeout() = default;
  template <class Rep, class Period>
  explicit(false) Timeout(std::chrono::duration<Rep, Period> duration)
      : kind_(Kind::duration), value_(checked(duration).count()) {}
  explicit(false) Timeout(Deadline deadline)
      : kind_(Kind::deadline), value_(deadline.when().time_since_epoch().count()) {}

  bool is_default() const noexcept { return kind_ == Kind::none; }
  /// The given duration, the time left until the given deadline, or `otherwise` if neither was given.
  std::chrono::milliseconds duration_or(std::chrono::milliseconds otherwise) const {
    if (kind_ == Kind::none) return otherwise;
    if (kind_ == Kind::duration) return std::chrono::milliseconds(value_);
    if (deadline().is_never()) return no_timeout;
    return std::chrono::ceil<std::chrono::milliseconds>(deadline().remaining());
  }
  /// The same as a deadline, counted from now.
  Deadline deadline_or(std::chrono::milliseconds otherwise) const {
    return kind_ == Kind::deadline ? deadline() : Deadline::after(duration_or(otherwise));
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

  Deadline deadline() const { return Deadline::at(Deadline::Clock::time_point(Deadline::Clock::duration(value_))); }

  // Two words rather than a variant, which is written byte by byte and then copied by words: options are made and
  // copied for every operation, and the copy would wait for the bytes.
  enum class Kind : std::int64_t { none, duration, deadline };
  Kind kind_ = Kind::none;
  std::int64_t value_ = 0;
};

}  // namespace cohort
