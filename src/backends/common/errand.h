// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

namespace cohort {

/// Work that must not keep its caller longer than that wants, such as a word to a store that may be out of reach: on a
/// thread of its own. For what is rare, such as the end of a group: each costs a thread.
class Errand {
 public:
  Errand() = default;
  ~Errand() { finish(); }
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;

  /// Whether `work` was done within this time; it goes on if not. One at a time: waits for the end of the one before.
  /// What `work` throws is lost.
  bool run(std::function<void()> work, std::chrono::milliseconds at_most);
  /// Waits for its end.
  void finish();

 private:
  std::mutex mutex_;
  std::thread thread_;
};

}  // namespace cohort
