// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of a group on several hosts learn that one of them is gone, or has given up: through the job's store,
// each by itself. An engine only knows that a connection closed, and of a host that was cut off not even that.
//
// Each rank holds a connection to the store whose end, however it comes, the server makes known ("last will"), and
// another on which it waits for such news. The kernel ends connections to a host that is silent for `patience`. Two
// connections and a sleeping thread for each group, and nothing in the path of an operation.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>
#include <cohort/store.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "backends/engine/errand.h"

namespace cohort {

class TcpStore;

/// Why a group is over.
struct Verdict {
  enum class Kind : std::uint8_t {
    lost,     ///< the process or host of `rank` is gone
    aborted,  ///< `rank` aborted the group; `text` is its reason
    cut_off,  ///< the store cannot be reached any more: its host is gone, or this one is cut off
  };
  Kind kind = Kind::lost;
  int rank = -1;
  std::string text{};
};

std::string encode(const Verdict& verdict);
/// Nothing if the text is no verdict.
std::optional<Verdict> decode_verdict(const std::string& text);
/// For aborting a part of a group: whoever meets it there finds the verdict in the message of its error.
std::string as_reason(const Verdict& verdict);
std::optional<Verdict> verdict_in(const std::string& message);

/// PeerLostError or AbortedError, with the rank at fault.
[[noreturn]] void throw_verdict(const Verdict& verdict, ErrorContext context);

class Lifeline {
 public:
  static constexpr std::chrono::milliseconds patience{4000};

  /// Null where the store cannot tell (only a TcpStore can). `on_end` is called at most once, on a thread of the
  /// lifeline's own, and may call anything but the destructor.
  static std::unique_ptr<Lifeline> tie(const StorePtr& store, int rank, Deadline deadline,
                                       std::function<void(const Verdict&)> on_end);
  /// Leaves in an orderly way: the others are not told.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// Tells everybody; the first verdict stands. Keeps the caller a moment only, even if the store is out of reach.
  void declare(const Verdict& verdict);
  /// What is known, waiting for it at most this long.
  std::optional<Verdict> verdict(std::chrono::milliseconds at_most = {}) const;

 private:
  Lifeline(std::function<void(const Verdict&)> on_end) : on_end_(std::move(on_end)) {}
  void listen();
  void conclude(const Verdict& verdict);

  std::function<void(const Verdict&)> on_end_;
  StorePtr will_store_;  ///< with its prefix
  TcpStore* will_ = nullptr;
  StorePtr ear_store_;
  TcpStore* ear_ = nullptr;

  mutable std::mutex mutex_;
  mutable std::condition_variable concluded_;
  std::optional<Verdict> verdict_;
  bool is_leaving_ = false;
  bool is_out_of_reach_ = false;  ///< the store
  std::thread listener_;
  Errand declaring_;  ///< last: uses the others
};

}  // namespace cohort
