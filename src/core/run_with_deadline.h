// SPDX-License-Identifier: BSD-3-Clause
//
// Calls that may block for longer than their caller wants to wait, and that nothing can interrupt: a name look-up,
// MPI_Init, ncclCommAbort, a request to a store that may be out of reach.
//
//   const auto found = std::make_shared<Answer>();
//   if (!run_with_deadline([found] { *found = ask(); }, deadline)) throw TimeoutError("no answer");
//
// Each run costs a thread: this is for what is rare.
#pragma once

#include <cohort/deadline.h>

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cohort {

/// Owns the threads of runs that missed their deadlines. They go on until they return; none is detached. A later run,
/// or join_ended(), joins those that have ended meanwhile.
class LateThreads {
 public:
  /// The process's own, which is never destroyed: a thread that is still running when the process exits ends with it.
  static LateThreads& of_process();

  LateThreads() = default;
  /// Waits until all of them have ended.
  ~LateThreads() { join_all(); }
  LateThreads(const LateThreads&) = delete;
  LateThreads& operator=(const LateThreads&) = delete;

  void join_all();
  /// Joins those that have ended, and returns how many have not.
  std::size_t join_ended();

 private:
  friend bool run_with_deadline(std::function<void()> body, Deadline deadline, LateThreads& late, const char* name);
  struct Run;
  struct Late {
    std::thread thread;
    std::shared_ptr<Run> run;
    pid_t process;  ///< a child process after fork() has the entry, but no thread to join
  };
  void keep(std::thread thread, std::shared_ptr<Run> run);

  std::mutex mutex_;
  std::vector<Late> threads_;
};

/// Runs `body` on a thread of its own, called `name` (at most 15 characters), and waits for it until the deadline.
///
/// True: the body has returned, it and what it held have been destroyed, and the thread has been joined. What the body
/// threw is thrown here.
/// False: the deadline has passed. The body goes on, so it must own everything that it uses, or use only what outlives
/// `late`, which owns the thread from now on. What it throws later is logged.
///
/// A BackendError says that the system has no thread to give.
bool run_with_deadline(std::function<void()> body, Deadline deadline, LateThreads& late = LateThreads::of_process(),
                       const char* name = "cohort-deadline");

}  // namespace cohort
