// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/chooser.h"
#include "model/explorer.h"
#include "model/fiber.h"
#include "model/memory.h"
#include "model/trace.h"

namespace cohort::model {

/// The fibers that threads run on, kept from one execution to the next.
class FiberPool {
 public:
  Fiber& home() { return home_; }
  Fiber& thread(std::size_t index);
  /// Called if the fibers will not all run to their ends. Unwinding them would pass through code under test that may be
  /// noexcept, so their stacks stay as they are and are not used again.
  void abandon();

 private:
  Fiber home_;
  std::vector<std::unique_ptr<Fiber>> threads_;
};

/// One run of a program: the schedule, and the operations of the thread that is running.
class Execution {
 public:
  Execution(const Options& options, Chooser& chooser, FiberPool& fibers);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution();

  /// The execution in progress on this operating-system thread.
  static Execution& current();

  /// Returns what went wrong, or nullopt.
  std::optional<std::string> run(const Setup& setup);
  std::string trace() const { return trace_.text(); }
  const std::vector<std::size_t>& decisions() const { return decisions_; }
  std::size_t thread_decisions() const { return thread_decisions_; }

  LocationId add_atomic(Bits initial);
  LocationId add_plain();
  void name_atomic(LocationId location, std::string name) { trace_.name_atomic(location, std::move(name)); }
  void name_plain(LocationId location, std::string name) { trace_.name_plain(location, std::move(name)); }

  Bits load(LocationId location, std::memory_order order);
  void store(LocationId location, Bits value, std::memory_order order);
  Bits modify(LocationId location, const char* operation, detail::Change change, Bits operand, std::memory_order order);
  bool compare_exchange(LocationId location, Bits& expected, Bits desired, std::memory_order success,
                        std::memory_order failure, bool weak);
  void fence(std::memory_order order);
  void access_plain(LocationId location, bool write);
  void pause();
  void futex_wait(LocationId word, Bits expected);
  void futex_wake(LocationId word);
  [[noreturn]] void fail(std::string message);

 private:
  enum class State { ready, paused, asleep, finished };
  struct Read {
    LocationId location = 0;
    StoreIndex store = 0;
  };
  struct Thread {
    State state = State::ready;
    LocationId sleeps_on = 0;
    std::uint32_t spurious_wakeups = 0;
    std::vector<std::uint32_t> stale_reads;  ///< in a row, for each location
    std::vector<Read> reads;                 ///< since the last pause
    std::uint64_t stores_at_pause = 0;
    std::uint32_t idle_pauses = 0;  ///< rounds of a wait loop in which nothing was new
    std::array<std::uint32_t, max_threads> pauses_since_step_of{};
  };
  struct Abandoned {};

  Thread& self() { return threads_[running_]; }
  Fiber& fiber(ThreadId thread) { return thread == main_thread ? fibers_.home() : fibers_.thread(thread - 1); }
  void add_threads();
  Fiber& run_thread(ThreadId thread);
  void run_threads();

  /// Lets other threads run first if the chooser decides so; every operation begins with it.
  void arrive();
  void hand_over();
  ThreadId pick();
  void find_candidates();
  ThreadId pick_idle();
  bool has_news(const Thread& thread) const;
  bool read_something_old(const Thread& thread) const;
  bool is_behind_in_turn(const Thread& thread, const std::vector<ThreadId>& willing) const;

  std::size_t decide(std::size_t count);
  std::size_t accept(std::optional<std::size_t> chosen);
  bool may_read_old(LocationId location);
  void note_read(LocationId location, StoreIndex store);
  void count_stale(LocationId location, bool stale);
  std::string describe_waiting() const;

  const Options& options_;
  Chooser& chooser_;
  FiberPool& fibers_;
  Program program_;
  Memory memory_;
  Trace trace_;
  std::vector<Thread> threads_;
  ThreadId running_ = main_thread;
  bool starting_ = false;
  std::uint32_t steps_ = 0;
  std::uint64_t stores_ = 0;
  std::uint32_t preemptions_ = 0;
  std::vector<ThreadId> willing_;
  std::vector<ThreadId> candidates_;
  std::vector<std::size_t> decisions_;
  std::size_t thread_decisions_ = 0;
  std::optional<std::string> failure_;
};

}  // namespace cohort::model
