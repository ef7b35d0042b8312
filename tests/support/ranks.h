// SPDX-License-Identifier: BSD-3-Clause
//
// Runs the same body as several ranks: as threads, which ThreadSanitizer can check, or as processes, which can be
// killed.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort::test {

/// Runs body(0) ... body(n - 1) on threads. An exception on any of them fails the test and names the rank.
inline void as_threads(int ranks, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        failures.push_back("rank " + std::to_string(rank) + ": " + e.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) ADD_FAILURE() << failure;
}

/// A child process that runs `body` and exits with its result. It is killed if it outlives this object.
class Process {
 public:
  explicit Process(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
    // Skips the parent's exit handlers and the destructors of its threads' data.
    ::_exit(::testing::Test::HasFailure() ? 98 : status);
  }
  Process(Process&& other) noexcept : pid_(other.pid_) { other.pid_ = -1; }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// Returns the exit status, or 128 + signal.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

/// Runs body(rank) in processes and expects each to return 0.
inline void as_processes(int ranks, const std::function<int(int)>& body) {
  std::vector<Process> processes;
  for (int rank = 0; rank < ranks; ++rank) processes.emplace_back([&, rank] { return body(rank); });
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(processes[static_cast<std::size_t>(rank)].wait(), 0) << "rank " << rank;
  }
}

/// Whether a thread of this process sleeps in the kernel. Its number is that of gettid().
inline bool is_asleep(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto name_ends = text.rfind(')');  // "42 (name) S ..."; the name may contain anything
  return name_ends != std::string::npos && name_ends + 2 < text.size() && text[name_ends + 2] == 'S';
}

/// Calls `fn` on a thread of its own, and returns when that thread sleeps, or has ended. So a test knows that what it
/// does next comes after the beginning of the wait.
template <class Fn>
auto start_waiting(Fn fn) -> std::future<std::invoke_result_t<Fn&>> {
  std::atomic<pid_t> thread{0};
  auto waiting = std::async(std::launch::async, [&thread, fn = std::move(fn)]() mutable {
    thread = static_cast<pid_t>(::syscall(SYS_gettid));
    return fn();
  });
  while (thread == 0 ||
         (!is_asleep(thread) && waiting.wait_for(std::chrono::seconds(0)) != std::future_status::ready)) {
    std::this_thread::yield();
  }
  return waiting;
}

inline std::chrono::milliseconds time_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

}  // namespace cohort::test
