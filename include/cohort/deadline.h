// SPDX-License-Identifier: BSD-3-Clause
//
// A Deadline is a point in time on the steady clock. It is made once, where a user's timeout enters the library, and
// passed down by value. No layer restarts the clock, so the user's timeout bounds the whole call.
//
//   void fetch(std::chrono::milliseconds timeout) {
//     const auto deadline = cohort::Deadline::after(timeout);
//     connect(deadline);
//     read(deadline);           // has the time that connect() left
//   }
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace cohort {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// `timeout` from now. A timeout that does not fit the clock, such as milliseconds::max(), gives never().
  static Deadline after(std::chrono::milliseconds timeout) noexcept {
    const auto now = Clock::now();
    const auto room = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::time_point::max() - now);
    return timeout >= room ? never() : Deadline(now + timeout);
  }
  static Deadline at(Clock::time_point when) noexcept { return Deadline(when); }
  static Deadline never() noexcept { return Deadline(Clock::time_point::max()); }

  bool is_never() const noexcept { return when_ == Clock::time_point::max(); }
  bool expired() const noexcept { return !is_never() && Clock::now() >= when_; }
  Clock::time_point when() const noexcept { return when_; }

  /// The time left: never negative, and the largest duration for never().
  Clock::duration remaining() const noexcept {
    if (is_never()) return Clock::duration::max();
    return std::max(when_ - Clock::now(), Clock::duration::zero());
  }

  /// For poll(2) and epoll_wait(2): milliseconds rounded up (so that a wait never ends early and spins), -1 for
  /// never().
  int poll_timeout() const noexcept {
    if (is_never()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
    return static_cast<int>(std::min<decltype(left)>(left, std::numeric_limits<int>::max()));
  }

  friend Deadline earlier(Deadline a, Deadline b) noexcept { return a.when_ < b.when_ ? a : b; }

 private:
  explicit Deadline(Clock::time_point when) noexcept : when_(when) {}
  Clock::time_point when_;
};

}  // namespace cohort
