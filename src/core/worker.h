// SPDX-License-Identifier: BSD-3-Clause
//
// A thread that belongs to an object: started by the first thing there is to do, asleep while there is nothing, and
// stopped and joined when the object is destroyed.
//
//   struct Printer::Job final : Worker::Job {
//     std::deque<std::string> lines;
//     Worker::Next step(Worker::Lock& lock) override {
//       if (lines.empty()) return Worker::Next::idle();
//       const auto line = std::move(lines.front());
//       lines.pop_front();
//       lock.unlock();
//       std::puts(line.c_str());
//       lock.lock();
//       return Worker::Next::again();
//     }
//   };
//   worker_.submit([&] { job_->lines.push_back("hello"); });
//
// The object and its thread share the job, and both hold it: the object may be destroyed on the thread itself, by what
// a step runs, and then the thread outlives the object by a moment. A step therefore uses the job alone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace cohort {

class Worker {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Lock = std::unique_lock<std::mutex>;

  /// What a step asks for, decided with the mutex held.
  struct Next {
    Time when = Time::max();  ///< of the next step, unless the thread is woken earlier; max: only when it is woken
    bool is_idle = false;     ///< Nothing is left to do: a worker that is being stopped ends here.

    static Next again() { return {.when = Time::min()}; }
    static Next at(Time when) { return {.when = when}; }
    static Next when_woken() { return {}; }
    static Next idle(Time when = Time::max()) { return {.when = when, .is_idle = true}; }
  };

  /// What the thread does, and the state that it shares with the object that owns the worker.
  class Job {
   public:
    Job() = default;
    virtual ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    std::mutex mutex;
    /// Makes the thread take another step. The mutex is held by the caller.
    void wake();

   protected:
    /// Called once, on the thread, before the first step and without the mutex.
    virtual void begin() {}
    /// One round of work, on the thread. The mutex is held on entry and on return; a step releases it for whatever may
    /// take long or may destroy the worker's owner. An exception is logged, and the next step is taken.
    virtual Next step(Lock& lock) = 0;
    /// Whether the owner is being destroyed, or has been. With the mutex held.
    bool is_stopping() const { return is_stopping_; }

   private:
    friend class Worker;
    void run(const char* name) noexcept;
    Next step_or_log(Lock& lock) noexcept;

    std::condition_variable woken_;
    bool is_woken_ = false;
    bool is_stopping_ = false;
    Time sleeps_until_ = Time::min();  ///< min while a step runs
  };

  /// `name`: the thread's, at most 15 characters; it must stay valid.
  Worker(const char* name, std::shared_ptr<Job> job);
  /// Lets the thread finish what is left, and joins it; on the thread itself, leaves the joining to others
  /// (core/reaper.h). In a child process after fork(), where the thread does not exist, does nothing.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Calls `change` with the mutex held and wakes the thread, which the first call starts. A BackendError if the system
  /// has no thread to give; `change` is not called then. With `by`, the thread is left asleep if it would take its next
  /// step by that time anyway.
  template <class Change>
  auto submit(Change&& change, Time by = Time::min()) {
    const Lock lock(job_->mutex);
    start();
    const Waker waker{*job_, by};
    return std::forward<Change>(change)();
  }

  /// Whether the caller is the thread.
  bool is_current() const noexcept;

 private:
  struct Waker {
    Job& job;
    Time by;
    ~Waker() {
      if (by == Time::min() || job.sleeps_until_ == Time::max() || by < job.sleeps_until_) job.wake();
    }
  };

  void start();

  const char* const name_;
  const std::shared_ptr<Job> job_;
  std::thread thread_;  ///< under the job's mutex
  pid_t process_ = 0;   ///< in which the thread was started
};

}  // namespace cohort
