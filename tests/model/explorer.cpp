// SPDX-License-Identifier: BSD-3-Clause
#include "model/explorer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "model/chooser.h"
#include "model/execution.h"

namespace cohort::model {

namespace {

std::uint64_t hash(const std::vector<std::size_t>& decisions) {
  std::uint64_t state = 0xcbf29ce484222325;
  for (const auto decision : decisions) {
    state = (state ^ (decision + 1)) * 0x100000001b3;
    state ^= state >> 32;
  }
  return state;
}

std::vector<std::size_t> parse_decisions(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::size_t> decisions;
  for (std::size_t decision = 0; in >> decision;) decisions.push_back(decision);
  return decisions;
}

/// Runs executions and counts them.
class Explorer {
 public:
  Explorer(const Options& options, const Setup& setup) : options_(options), setup_(setup) {
    report_.seed = options.seed;
  }

  /// Returns false if the execution failed.
  bool run(Chooser& chooser) {
    Execution execution(options_, chooser, fibers_);
    const auto message = execution.run(setup_);
    ++report_.executions;
    if (seen_.insert(hash(execution.decisions())).second) ++report_.distinct;
    length_ = std::max(length_, execution.thread_decisions());
    if (!message) return true;
    report_.failure = Failure{.message = *message,
                              .trace = execution.trace(),
                              .decisions = fmt::format("{}", fmt::join(execution.decisions(), " ")),
                              .execution = report_.executions};
    return false;
  }

  void explore_all() {
    ExhaustiveChooser chooser;
    while (report_.executions < options_.executions) {
      if (!run(chooser)) return;
      if (!chooser.advance()) {
        report_.complete = true;
        return;
      }
    }
  }

  void sample() {
    std::mt19937_64 seeds(options_.seed);
    while (report_.executions < options_.executions) {
      const auto seed = seeds();
      UniformChooser uniform(seed);
      PriorityChooser priorities(seed, length_);
      if (!run(report_.executions % 2 == 0 ? uniform : static_cast<Chooser&>(priorities))) return;
    }
  }

  const Report& report() const { return report_; }

 private:
  const Options& options_;
  const Setup& setup_;
  FiberPool fibers_;
  std::unordered_set<std::uint64_t> seen_;
  std::size_t length_ = 0;
  Report report_;
};

}  // namespace

Report explore(const Options& options, const Setup& setup) {
  Explorer explorer(options, setup);
  if (options.search == Search::exhaustive) {
    explorer.explore_all();
  } else {
    explorer.sample();
  }
  return explorer.report();
}

Report replay(const Options& options, const std::string& decisions, const Setup& setup) {
  Explorer explorer(options, setup);
  ReplayChooser chooser(parse_decisions(decisions));
  explorer.run(chooser);
  return explorer.report();
}

std::ostream& operator<<(std::ostream& out, const Report& report) {
  out << report.executions << " executions, " << report.distinct << " of them distinct"
      << (report.complete ? ", no others exist" : "");
  if (!report.failure) return out << ", all right\n";
  const auto& failure = *report.failure;
  return out << ", seed " << report.seed << "; number " << failure.execution << " failed: " << failure.message << '\n'
             << failure.trace << "replay with \"" << failure.decisions << "\"\n";
}

void require(bool condition, const std::string& message) {
  if (!condition) Execution::current().fail(message);
}

void pause() {
  Execution::current().pause();
}

void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected) {
  Execution::current().futex_wait(word.location(), detail::to_bits(expected));
}

void futex_wake(Atomic<std::uint32_t>& word) {
  Execution::current().futex_wake(word.location());
}

void fence(std::memory_order order) {
  Execution::current().fence(order);
}

namespace detail {

LocationId add_atomic(Bits initial) {
  return Execution::current().add_atomic(initial);
}

void name_atomic(LocationId location, std::string name) {
  Execution::current().name_atomic(location, std::move(name));
}

Bits load(LocationId location, std::memory_order order) {
  return Execution::current().load(location, order);
}

void store(LocationId location, Bits value, std::memory_order order) {
  Execution::current().store(location, value, order);
}

Bits modify(LocationId location, const char* operation, Change change, Bits operand, std::memory_order order) {
  return Execution::current().modify(location, operation, change, operand, order);
}

bool compare_exchange(LocationId location, Bits& expected, Bits desired, std::memory_order success,
                      std::memory_order failure, bool weak) {
  return Execution::current().compare_exchange(location, expected, desired, success, failure, weak);
}

LocationId add_plain() {
  return Execution::current().add_plain();
}

void name_plain(LocationId location, std::string name) {
  Execution::current().name_plain(location, std::move(name));
}

void access_plain(LocationId location, bool write) {
  Execution::current().access_plain(location, write);
}

}  // namespace detail

}  // namespace cohort::model
