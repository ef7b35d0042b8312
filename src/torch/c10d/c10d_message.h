// SPDX-License-Identifier: BSD-3-Clause
//
// A send or receive that c10d has been given, and cannot take back.
//
// The Work of a message cannot be polled everywhere: gloo's is complete only once somebody has waited for it. A thread
// (completion_threads.h) does so then, and is called off when nobody wants to know any more.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/deadline.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace cohort {

/// The time until the deadline as c10d takes it: not 0, which means forever, and not more than its clocks can add.
inline std::chrono::milliseconds c10d_timeout(Deadline deadline) {
  using std::chrono::milliseconds;
  constexpr milliseconds longest = std::chrono::hours(24 * 365);
  if (deadline.is_never()) return longest;
  return std::clamp(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1), longest);
}

/// Lets one thread rest until any message of a group may have ended.
class MessageProgress {
 public:
  void ended();
  void rest(Deadline until);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t ended_ = 0;
  std::uint64_t seen_ = 0;
};

class PostedMessage : public std::enable_shared_from_this<PostedMessage> {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// `memory` holds what is sent, or will hold what is received.
  PostedMessage(WorkPtr work, at::Tensor memory, bool can_be_polled, std::shared_ptr<MessageProgress> progress)
      : work_(std::move(work)),
        memory_(std::move(memory)),
        can_be_polled_(can_be_polled),
        progress_(std::move(progress)) {}

  const at::Tensor& memory() const { return memory_; }
  /// The sender of a message that has arrived; -1 if c10d does not say.
  int source() const;

  /// Whether the message has been sent or has arrived; throws c10d's error. Called until `deadline` at the latest.
  bool is_done(Deadline deadline);
  /// Returns when the message may be done, and not later than `until`.
  void rest(Deadline until);
  /// The caller has given up on the message; it may be taken over later.
  void leave() noexcept;

 private:
  enum class State { unwatched, watched, done, failed };

  void watch(std::chrono::milliseconds timeout) noexcept;

  const WorkPtr work_;
  const at::Tensor memory_;
  const bool can_be_polled_;
  const std::shared_ptr<MessageProgress> progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::unwatched;
  std::exception_ptr error_;
};

}  // namespace cohort
