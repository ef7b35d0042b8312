// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Runs small concurrent programs through many interleavings, deterministically, on memory that is as weak as C++
// allows: a load may return any store that the memory model permits, not only the newest. Code that happens to work on
// x86 but is wrong on Arm fails here, with a trace.
//
//   const auto report = model::explore({.executions = 10'000}, [](model::Program& program) {
//     struct State { model::Atomic<int> flag{0}; model::Plain<int> payload{0}; };
//     auto& state = program.make<State>();
//     model::name(state.flag, "flag");
//     program.thread("writer", [&] { state.payload = 42; state.flag.store(1, std::memory_order_release); });
//     program.thread("reader", [&] {
//       while (state.flag.load(std::memory_order_acquire) == 0) model::pause();
//       model::require(state.payload == 42, "the payload is there when the flag is");
//     });
//   });
//   EXPECT_FALSE(report.failure) << report;
//
// The setup is called again for every execution and must do the same each time. Threads switch only at atomic
// operations, seq_cst fences and futex calls; everything between two of them is one step. Whether plain accesses race
// follows from happens-before and not from the schedule, so they need no switch.
//
// The memory model is that of C++20: coherence, release sequences (the releasing store and the read-modify-writes that
// follow it; not later relaxed stores of the same thread), fences, and one total order S of the seq_cst operations,
// which [atomics.order] ties to what loads may return. A weak compare-exchange may fail spuriously; one that fails is a
// load and may return an old value.
//
// Every behaviour shown is allowed by C++20, but not every behaviour that it allows is shown:
//   - A load returns a store that was executed before it, so there is no load buffering (r1 = x; y = 1 || r2 = y; x = 1
//     with r1 == r2 == 1). There are no values invented by the compiler or out of thin air either.
//   - The modification order of a location is the order in which its stores were executed: 2+2W (x = 1; y = 2 || y = 1;
//     x = 2 with both locations ending as 1) is not shown.
//   - S is the order of execution as well, so it never contradicts happens-before, which C++20 allows where seq_cst and
//     weaker accesses of one location mix.
//   - consume is treated as acquire.
//   - Stores become visible eventually: see Options::stale_reads and pause().
//   - Timeouts never expire, so that a lost wake-up shows as a deadlock.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "model/atomic.h"

namespace cohort::model {

enum class Search {
  exhaustive,  ///< every execution, depth first; for a handful of operations per thread
  random,      ///< samples; executions alternate between uniform choices and few changes of thread priorities
};

struct Options {
  Search search = Search::random;
  std::uint64_t executions = 10'000;  ///< the maximum
  std::uint64_t seed = 1;
  std::uint32_t max_steps = 10'000;  ///< an execution that takes more fails: it loops without pause(), or is too long
  /// How often a thread may be interrupted between two operations in one execution; unbounded if not set.
  std::optional<std::uint32_t> preemption_bound{};
  /// After this many reads of old values of one location in a row, a thread reads the newest.
  std::uint32_t stale_reads = 2;
  /// How many rounds a wait loop may run in vain, with no other thread having stored anything, before its thread is
  /// held back. Code that spins n rounds and then sleeps needs n here; otherwise the sleep is never raced.
  std::uint32_t free_pauses = 2;
  /// How often futex_wait may return spuriously, for each thread.
  std::uint32_t spurious_wakeups = 1;
};

/// What the setup describes: the shared state, the threads, and what must hold when all have ended.
class Program {
 public:
  /// An object that lives as long as the execution.
  template <class T, class... Arguments>
  T& make(Arguments&&... arguments) {
    auto object = std::make_shared<T>(std::forward<Arguments>(arguments)...);
    objects_.push_back(object);
    return *object;
  }
  void thread(std::string name, std::function<void()> body) { threads_.push_back({std::move(name), std::move(body)}); }
  void after(std::function<void()> check) { after_ = std::move(check); }

 private:
  friend class Execution;
  struct Thread {
    std::string name;
    std::function<void()> body;
  };
  std::vector<std::shared_ptr<void>> objects_;
  std::vector<Thread> threads_;
  std::function<void()> after_;
};
using Setup = std::function<void(Program&)>;

struct Failure {
  std::string message;
  std::string trace;      ///< one line for each operation
  std::string decisions;  ///< for replay()
  std::uint64_t execution = 0;
};

struct Report {
  std::uint64_t executions = 0;
  std::uint64_t distinct = 0;  ///< executions that differ from each other in at least one decision
  bool complete = false;       ///< whether an exhaustive search has run all executions
  std::uint64_t seed = 0;
  std::optional<Failure> failure{};
};
std::ostream& operator<<(std::ostream& out, const Report& report);
/// What went wrong in the execution that failed; empty if none failed.
inline std::string failure(const Report& report) {
  return report.failure ? report.failure->message : "";
}

/// Explores until an execution fails, there are no more, or the bound is reached.
Report explore(const Options& options, const Setup& setup);
/// Runs the one execution that made these decisions; the options must be the same.
Report replay(const Options& options, const std::string& decisions, const Setup& setup);

/// For code inside an execution: fails the execution if the condition does not hold.
void require(bool condition, const std::string& message);

/// Must be called in every round of a wait loop. A thread that finds nothing new is held back until another has stored
/// to a location that it read, or until all others wait as well; if none of the loops ends then, this is a deadlock.
void pause();

/// Sleeps if the newest value of the word is `expected`, as the kernel does: nothing comes between the comparison and
/// the sleep. Orders nothing.
void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected);
/// Wakes all threads that sleep on the word.
void futex_wake(Atomic<std::uint32_t>& word);

}  // namespace cohort::model
