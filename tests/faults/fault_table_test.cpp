// SPDX-License-Identifier: BSD-3-Clause
//
// The fault table: each fault in each operation on each backend, one test per cell. Every test records the error that
// the other ranks got and how long it took; tools/dev/fault_table.py writes them into docs/faults.md.
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "faults/fault_scenario.h"
#include "faults/operations.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

enum class Fault { killed, exits, unwinds, stopped, absent, aborts, calls_another };

constexpr Fault faults[] = {Fault::killed, Fault::exits,  Fault::unwinds,      Fault::stopped,
                            Fault::absent, Fault::aborts, Fault::calls_another};

constexpr const char* to_string(Fault fault) {
  constexpr const char* names[] = {"killed", "exits", "unwinds", "stopped", "absent", "aborts", "calls_another"};
  return names[static_cast<std::size_t>(fault)];
}

struct Phase {
  const char* name;
  void (*run)(ProcessGroup& group, Scratch& scratch);
  /// What a rank calls that disagrees with the others. Null: a wrong message is an error of its receiver alone
  /// (Groups/PointToPointErrors).
  void (*run_another)(ProcessGroup& group, Scratch& scratch) = [](ProcessGroup& group, Scratch&) { group.barrier(); };
};

constexpr int size = 3;
constexpr int victim = 1;
constexpr std::size_t small = 4;
constexpr std::size_t large = Scratch::large;
constexpr auto deadline = 400ms;
/// Beyond the deadline: asking the others which operation they are in, on a machine with fewer cores than ranks.
constexpr auto reporting = 1500ms;

constexpr Phase phases[] = {
    {"all_reduce_small", [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(small)); }},
    {"all_reduce_large", [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(large)); }},
    {"all_reduce_async",
     [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(large), {.async_op = true}).wait(); }},
    {"broadcast_small",
     [](ProcessGroup& group, Scratch& scratch) { group.broadcast(scratch.data(small), {.root = victim}); }},
    {"broadcast_large",
     [](ProcessGroup& group, Scratch& scratch) { group.broadcast(scratch.data(large), {.root = victim}); }},
    {"reduce_small", [](ProcessGroup& group, Scratch& scratch) { group.reduce(scratch.data(small)); }},
    {"reduce_large", [](ProcessGroup& group, Scratch& scratch) { group.reduce(scratch.data(large)); }},
    {"all_gather",
     [](ProcessGroup& group, Scratch& scratch) { group.all_gather(scratch.for_all(200'000), scratch.data(200'000)); }},
    {"reduce_scatter", [](ProcessGroup& group,
                          Scratch& scratch) { group.reduce_scatter(scratch.data(200'000), scratch.for_all(200'000)); }},
    {"all_to_all", [](ProcessGroup& group,
                      Scratch& scratch) { group.all_to_all(scratch.from_all(100'000), scratch.for_all(100'000)); }},
    {"barrier", [](ProcessGroup& group, Scratch&) { group.barrier(); },
     [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(small)); }},
    {"send_recv_small", [](ProcessGroup& group, Scratch& scratch) { exchange_with_neighbours(group, scratch, small); },
     nullptr},
    {"send_recv_large",
     [](ProcessGroup& group, Scratch& scratch) { exchange_with_neighbours(group, scratch, 300'000); }, nullptr},
    {"batch",
     [](ProcessGroup& group, Scratch& scratch) {
       auto batch = group.batch();
       batch.all_reduce(scratch.data(small));
       batch.all_reduce(scratch.for_all(small));
       batch.run().wait();
     }},
    {"all_gather_bytes", [](ProcessGroup& group, Scratch&) { group.all_gather_bytes("bytes"); }},
    {"split_group",
     [](ProcessGroup& group, Scratch&) {
       std::vector<int> all(static_cast<std::size_t>(group.size()));
       std::iota(all.begin(), all.end(), 0);
       group.split_group(all);
     }},
    // The victim shares its part with rank 0, but all ranks take part in making both.
    {"partition",
     [](ProcessGroup& group, Scratch&) {
       group.partition({{0, victim}, {2}});
     }},
};

struct Cell {
  const char* backend;
  Fault fault;
  Phase phase;

  friend void PrintTo(const Cell& cell, std::ostream* out) {
    *out << to_string(cell.fault) << " in " << cell.phase.name << " on " << cell.backend;
  }
};

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const auto* const backend : {"shm", "gloo", "hybrid"}) {
    for (const auto fault : faults) {
      for (const auto& phase : phases) {
        if (fault != Fault::calls_another || phase.run_another != nullptr) all.push_back({backend, fault, phase});
      }
    }
  }
  return all;
}

/// Whether the fault ends the process or its group: what the survivors see then is a departure.
bool departs(Fault fault) {
  return fault == Fault::killed || fault == Fault::exits || fault == Fault::unwinds;
}

const char* expected_error(Fault fault) {
  if (departs(fault)) return "PeerLostError";
  if (fault == Fault::aborts) return "AbortedError";
  return fault == Fault::calls_another ? "MismatchError" : "OperationTimeoutError";
}

bool ends_at_the_deadline(Fault fault) {
  return !departs(fault) && fault != Fault::aborts;
}

class FaultTable : public FaultTest, public ::testing::WithParamInterface<Cell> {
 protected:
  static ProcessGroupPtr join(const Member& me) {
    const auto timeout = ends_at_the_deadline(GetParam().fault) ? 20s : 60s;
    return new_group(GetParam().backend, timeout, "cpu", {},
                     {.store = me.open_store(), .rank = me.rank(), .size = me.size(), .name = "cell"});
  }

  /// The rank that the fault happens to, after all ranks have completed the operation once.
  static void fail(const Member& me, ProcessGroupPtr group, std::optional<Scratch> scratch) {
    switch (GetParam().fault) {
      case Fault::killed:
      case Fault::stopped:
        me.attempt("operation", [&] {
          for (;;) GetParam().phase.run(*group, *scratch);
        });
        return;
      case Fault::exits:
        std::exit(0);
      case Fault::unwinds:
        scratch.reset();
        return group.reset();
      case Fault::absent:
        return me.await_go();
      case Fault::aborts:
        group->abort("the test says so");
        me.attempt("operation", [&] { GetParam().phase.run(*group, *scratch); });
        return;
      case Fault::calls_another:
        me.attempt("operation", [&] { GetParam().phase.run_another(*group, *scratch); });
        return;
    }
  }

  static void take_part(const Member& me) {
    auto group = join(me);
    std::optional<Scratch> scratch(*group);
    GetParam().phase.run(*group, *scratch);
    if (ends_at_the_deadline(GetParam().fault)) group->set_timeout(deadline);
    me.say("ready");
    me.await_go();
    if (me.rank() == victim) return fail(me, std::move(group), std::move(scratch));
    me.attempt("operation", [&] {
      for (;;) GetParam().phase.run(*group, *scratch);
    });
    me.attempt("afterwards", [&] { group->barrier(); });
    me.await_go();
  }

  static void expect_right(const Word& word, std::int64_t milliseconds) {
    const auto fault = GetParam().fault;
    EXPECT_EQ(word.type, expected_error(fault)) << word;
    const auto limit = ends_at_the_deadline(fault) ? std::int64_t{(2 * deadline + reporting).count()} : 1000;
    EXPECT_LT(milliseconds, limit) << word;
    const bool is_message = std::string_view(GetParam().phase.name).starts_with("send_recv");
    // In a ring on gloo, a rank that waits for one that waits names that one. A mismatch names two ranks that differ.
    const bool is_next_named = is_message && std::string_view(GetParam().backend) == "gloo";
    if (!is_next_named && fault != Fault::calls_another) {
      EXPECT_EQ(word.at_fault, victim) << word;
    }
    if (departs(fault)) {
      // Only shared memory has a pidfd; through a store a death cannot be told from a host that is cut off.
      const char* const dead = std::string_view(GetParam().backend) == "gloo" ? "is gone" : "has died";
      EXPECT_THAT(word.text, ::testing::HasSubstr(fault == Fault::killed ? dead : "has left the group"));
    }
  }
};

TEST_P(FaultTable, Cell) {
  const auto fault = GetParam().fault;
  FaultScenario scenario(store(), size, [](Member& me) { take_part(me); });
  scenario.hear_all("ready");
  auto start = Clock::now();
  scenario.go_all();
  if (fault == Fault::killed) start = scenario.signal(victim, SIGKILL);
  if (fault == Fault::stopped) start = scenario.signal(victim, SIGSTOP);
  if (departs(fault)) {
    EXPECT_EQ(scenario.end_of(victim), fault == Fault::killed ? 128 + SIGKILL : 0);
    start = Clock::now();  // exit() itself takes a while
  }
  if (fault == Fault::aborts || fault == Fault::calls_another) {
    const auto own = scenario.hear(victim, "operation");
    EXPECT_EQ(own.type, expected_error(fault)) << "the rank itself: " << own;
  }
  std::int64_t slowest = 0;
  for (const auto& word : scenario.hear_all("operation", victim)) {
    const auto took = milliseconds_between(start, word.when);
    expect_right(word, took);
    slowest = std::max(slowest, took);
  }
  for (const auto& word : scenario.hear_all("afterwards", victim)) EXPECT_NE(word.type, "") << word;
  if (fault == Fault::stopped) {
    scenario.signal(victim, SIGCONT);
    const auto woke = scenario.hear(victim, "operation");
    EXPECT_NE(woke.type, "") << "the stopped rank, continued: " << woke;
  }
  RecordProperty("backend", GetParam().backend);
  RecordProperty("fault", to_string(fault));
  RecordProperty("phase", GetParam().phase.name);
  RecordProperty("error", expected_error(fault));
  RecordProperty("milliseconds", std::to_string(slowest));
  scenario.go_all(departs(fault) ? victim : -1);
  scenario.expect_end(departs(fault) ? victim : -1);
}

INSTANTIATE_TEST_SUITE_P(All, FaultTable, ::testing::ValuesIn(cells()), [](const auto& each) {
  return std::string(each.param.backend) + "_" + to_string(each.param.fault) + "_" + each.param.phase.name;
});

}  // namespace
}  // namespace cohort::test
