// SPDX-License-Identifier: BSD-3-Clause
#include "core/reaper.h"

#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "core/immortal.h"

namespace cohort {

namespace {

/// Process-wide and thread-safe: threads that are about to end and could not be joined by their owners.
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
    disown_after_fork();
    threads_.push_back(std::move(thread));
  }
  void reap() {
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mutex_);
      disown_after_fork();
      const auto is_self = [](const std::thread& each) { return each.get_id() == std::this_thread::get_id(); };
      for (auto& each : threads_) {
        if (!is_self(each)) threads.push_back(std::move(each));
      }
      std::erase_if(threads_, [](const std::thread& each) { return !each.joinable(); });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  /// In a child process the parent's threads do not exist, and can be neither joined nor detached.
  void disown_after_fork() {
    if (owner_ == ::getpid()) return;
    owner_ = ::getpid();
    for (auto& each : threads_) of_parents_->push_back(std::move(each));
    threads_.clear();
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    reap();
  }

  std::mutex mutex_;
  std::vector<std::thread> threads_;
  Immortal<std::vector<std::thread>> of_parents_;
  pid_t owner_ = ::getpid();
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
