// SPDX-License-Identifier: BSD-3-Clause
#include "core/reaper.h"

#include <mutex>
#include <utility>
#include <vector>

#include "core/immortal.h"

namespace cohort {

namespace {

/// Process-wide and thread-safe: threads about to end that could not be joined where they were left.
class Reaper {
 public:
  static Reaper& instance() {
    static Immortal<Reaper> reaper;
    static const struct AtExit {
      ~AtExit() { reaper->close(); }
    } at_exit;
    return *reaper;
  }

  void keep(std::thread thread) {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return thread.detach();  // the process is exiting: nobody is left to join it
    threads_.push_back(std::move(thread));
  }
  void reap() {
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mutex_);
      const auto is_self = [](const std::thread& each) { return each.get_id() == std::this_thread::get_id(); };
      for (auto& each : threads_) {
        if (!is_self(each)) threads.push_back(std::move(each));
      }
      std::erase_if(threads_, [](const std::thread& each) { return !each.joinable(); });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    reap();
  }

  std::mutex mutex_;
  std::vector<std::thread> threads_;
  bool is_closed_ = false;
};

}  // namespace

void join_now_or_later(std::thread thread) {
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    Reaper::instance().keep(std::move(thread));
  } else {
    thread.join();
    Reaper::instance().reap();
  }
}

}  // namespace cohort
