// SPDX-License-Identifier: BSD-3-Clause
#include "core/run_with_deadline.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <utility>

#include "core/immortal.h"
#include "core/log_format.h"
#include "core/start_thread.h"

namespace cohort {

/// Shared by the caller and the thread.
struct LateThreads::Run {
  std::mutex mutex{};
  std::condition_variable ended{};
  std::function<void()> body{};  ///< the thread's alone
  std::exception_ptr error{};
  bool is_late = false;
  bool has_ended = false;

  void run(const char* name) {
    ::pthread_setname_np(::pthread_self(), name);
    std::exception_ptr thrown;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
    body = nullptr;  // before the caller is told: what it holds must be gone by then
    const std::lock_guard lock(mutex);
    if (is_late && thrown) log_late(thrown);
    error = std::move(thrown);
    has_ended = true;
    ended.notify_all();
  }

  /// False if the deadline comes first.
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex);
    const auto is_over = [this] { return has_ended; };
    if (deadline.is_never()) {
      ended.wait(lock, is_over);
    } else {
      is_late = !ended.wait_until(lock, deadline.when(), is_over);
    }
    return !is_late;
  }

  static void log_late(const std::exception_ptr& thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      log_warn("a call that had missed its deadline failed: {}", e.what());
    } catch (...) {
      log_warn("a call that had missed its deadline failed");
    }
  }
};

LateThreads& LateThreads::of_process() {
  static Immortal<LateThreads> threads;
  static const struct AtExit {
    ~AtExit() { threads->join_ended(); }
  } at_exit;
  return *threads;
}

void LateThreads::keep(std::thread thread, std::shared_ptr<Run> run) {
  const std::lock_guard lock(mutex_);
  threads_.push_back({std::move(thread), std::move(run), ::getpid()});
}

std::size_t LateThreads::join_ended() {
  const std::lock_guard lock(mutex_);
  std::erase_if(threads_, [](Late& late) {
    if (late.process != ::getpid()) return false;
    {
      const std::lock_guard run_lock(late.run->mutex);
      if (!late.run->has_ended) return false;
    }
    late.thread.join();
    return true;
  });
  return threads_.size();
}

void LateThreads::join_all() {
  std::vector<Late> threads;
  {
    const std::lock_guard lock(mutex_);
    threads.swap(threads_);
  }
  for (auto& late : threads) late.thread.join();
}

bool run_with_deadline(std::function<void()> body, Deadline deadline, LateThreads& late, const char* name) {
  late.join_ended();
  const auto run = std::make_shared<LateThreads::Run>();
  run->body = std::move(body);
  auto thread = start_thread([run, name] { run->run(name); });
  if (!run->wait(deadline)) {
    late.keep(std::move(thread), run);
    return false;
  }
  thread.join();
  if (run->error) std::rethrow_exception(run->error);
  return true;
}

}  // namespace cohort
