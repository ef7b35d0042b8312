// SPDX-License-Identifier: BSD-3-Clause
//
// A rank leaves: killed, by exit(), or because an exception destroyed its group. Whatever the others are doing, each
// gets a PeerLostError that names the rank within a second, as does everything they try afterwards, and they can
// shrink.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <numeric>
#include <random>

#include "faults/fault_scenario.h"
#include "faults/operations.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

enum class Departure { killed, exits, unwinds };
enum class Moment { before, during, after };

const char* to_string(Departure departure) {
  constexpr const char* names[] = {"killed", "exits", "unwinds"};
  return names[static_cast<std::size_t>(departure)];
}
const char* to_string(Moment moment) {
  constexpr const char* names[] = {"before", "during", "after"};
  return names[static_cast<std::size_t>(moment)];
}

struct Case {
  InterruptedOperation operation{};
  Departure departure{};
  Moment moment{};
  int size = 0;
  int victim = 0;
};

/// The rank that leaves.
void depart(const Member& me, const Case& the) {
  try {
    const auto group = me.join(30s);
    Scratch scratch(*group);
    if (the.moment == Moment::after) the.operation.run(*group, scratch);
    me.say("made");
    if (the.moment == Moment::during) {
      while (the.departure == Departure::killed || !me.is_told_to_go()) the.operation.run(*group, scratch);
    } else {
      me.await_go();
    }
    if (the.departure == Departure::exits) std::exit(0);
    if (the.departure == Departure::killed) Member::idle();
    throw std::runtime_error("something else than the group went wrong");
  } catch (const std::runtime_error&) {
    return;
  }
}

void survive(const Member& me, const Case& the) {
  auto group = me.join(30s);
  std::optional<Scratch> scratch(*group);
  if (the.moment == Moment::after) the.operation.run(*group, *scratch);
  me.say("made");
  me.await_go();
  me.attempt("operation", [&] {
    for (;;) the.operation.run(*group, *scratch);
  });
  me.attempt("afterwards", [&] { group->barrier(); });
  if (me.size() == 2) return;
  me.await_go();
  me.attempt("shrink", [&] {
    group = group->shrink({.timeout = 10s});
    EXPECT_EQ(group->size(), me.size() - 1);
    EXPECT_EQ(group->rank(), me.rank() - (me.rank() > the.victim ? 1 : 0));
    scratch.reset();
    expect_all_reduce_works(*group, 3);
    expect_all_reduce_works(*group, Scratch::large);
    scratch.emplace(*group);
    group->all_reduce(scratch->shared());
    group->barrier();
  });
}

class DepartureTest : public FaultTest, public ::testing::WithParamInterface<InterruptedOperation> {
 protected:
  void run(const Case& the) {
    const auto title = std::string(to_string(the.departure)) + " " + to_string(the.moment) + " " + the.operation.name +
                       ", rank " + std::to_string(the.victim) + " of " + std::to_string(the.size);
    SCOPED_TRACE(title);
    FaultScenario scenario(store(), the.size,
                           [&](Member& me) { me.rank() == the.victim ? depart(me, the) : survive(me, the); });
    scenario.hear_all("made");
    if (the.moment != Moment::after) scenario.go_all(the.victim);
    if (the.moment == Moment::during) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 8000));
    const auto start = Clock::now();
    if (the.departure == Departure::killed) {
      scenario.signal(the.victim, SIGKILL);
    } else {
      scenario.go(the.victim);
    }
    EXPECT_EQ(scenario.end_of(the.victim), the.departure == Departure::killed ? 128 + SIGKILL : 0);
    const auto end = Clock::now();
    if (the.moment == Moment::after) scenario.go_all(the.victim);
    std::int64_t slowest = 0;
    Word last;
    for (const auto& word : scenario.hear_all("operation", the.victim)) {
      EXPECT_EQ(word.type, "PeerLostError") << word;
      EXPECT_EQ(word.at_fault, the.victim) << word;
      EXPECT_THAT(word.text,
                  ::testing::HasSubstr(the.departure == Departure::killed ? "has died" : "has left the group"));
      // From its last sign of life: exit() itself takes a while.
      slowest = std::max(slowest, milliseconds_between(the.departure == Departure::killed ? start : end, word.when));
      last = word;
    }
    EXPECT_LT(slowest, 1000);
    note(title, last, slowest);
    for (const auto& word : scenario.hear_all("afterwards", the.victim)) {
      EXPECT_EQ(word.type, "PeerLostError") << word;
      EXPECT_EQ(word.at_fault, the.victim) << word;
      EXPECT_THAT(word.text, ::testing::HasSubstr("the group is broken since"));
    }
    if (the.size > 2) {
      scenario.go_all(the.victim);
      for (const auto& word : scenario.hear_all("shrink", the.victim)) EXPECT_EQ(word.type, "") << word;
    }
    scenario.expect_end(the.victim);
  }

 private:
  std::mt19937 random_{7};
};

TEST_P(DepartureTest, IsNamedAndSurvived) {
  for (const auto moment : {Moment::before, Moment::during, Moment::after}) {
    for (const auto departure : {Departure::killed, Departure::exits, Departure::unwinds}) {
      for (const int size : {2, 3, 4}) {
        // BootstrapFunction, one in the middle, and the last one.
        const int victim = (static_cast<int>(moment) + static_cast<int>(departure) + size) % size;
        run({GetParam(), departure, moment, size, victim});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DepartureTest, ::testing::ValuesIn(interrupted_operations),
                         [](const auto& each) { return std::string(each.param.name); });

class PendingTest : public FaultTest {
 protected:
  /// What the others get, at their next operation.
  struct Outcome {
    const char* type;
    int at_fault;
    const char* text;
  };
  /// The collective of rank 1 has ended the group for all when it gave up, before it left.
  static constexpr Outcome given_up{"OperationTimeoutError", 0, "rank 1 gave up on all_reduce #2 after 500 ms"};
  /// A receive that gives up ends nothing; the group's destruction does.
  static constexpr Outcome left{"PeerLostError", 1, "rank 1 has left the group"};

  /// Rank 1 leaves with an operation under way that no other rank has joined.
  void expect_survived(const std::string& title, const Outcome& expected, void (*go)(ProcessGroupPtr group)) {
    SCOPED_TRACE(title);
    FaultScenario scenario(store(), 3, [&](Member& me) {
      auto group = me.join(20s);
      group->barrier();
      me.say("made");
      me.await_go();
      if (me.rank() == 1) {
        me.say("goes");
        go(std::move(group));
        return;
      }
      me.attempt("operation", [&] { group->barrier(); });
    });
    scenario.hear_all("made");
    scenario.go(1);
    scenario.hear(1, "goes");
    const auto start = Clock::now();
    EXPECT_EQ(scenario.end_of(1), 0);
    EXPECT_LT(milliseconds_between(start, Clock::now()), 500 + 1000) << "it waits until the deadline of its operation";
    const auto went = Clock::now();
    scenario.go_all(1);
    for (const auto& word : scenario.hear_all("operation", 1)) {
      EXPECT_EQ(word.type, expected.type) << word;
      EXPECT_EQ(word.at_fault, expected.at_fault) << word;
      EXPECT_THAT(word.text, ::testing::HasSubstr(expected.text));
      EXPECT_LT(milliseconds_between(went, word.when), 1000);
      note(title, word, milliseconds_between(went, word.when));
    }
    scenario.expect_end(1);
  }
};

TEST_F(PendingTest, OperationOfOneWhoExits) {
  expect_survived("exits with an async all_reduce", given_up, [](ProcessGroupPtr group) {
    static std::vector<float> data(Scratch::large);
    static auto work = group->all_reduce(data, {.async_op = true, .timeout = 500ms});
    static auto kept = std::move(group);
    std::exit(0);
  });
}

TEST_F(PendingTest, OperationOfOneThatUnwinds) {
  expect_survived("unwinds with an async all_reduce", given_up, [](ProcessGroupPtr group) {
    try {
      std::vector<float> data(Scratch::large);
      const auto work = group->all_reduce(data, {.async_op = true, .timeout = 500ms});
      const auto own = std::move(group);
      throw std::runtime_error("something else");
    } catch (const std::runtime_error&) {
      return;
    }
  });
}

TEST_F(PendingTest, ReceiveOfOneThatUnwinds) {
  expect_survived("unwinds with an async recv", left, [](ProcessGroupPtr group) {
    try {
      std::vector<float> data(Scratch::large);
      const auto work = group->recv(data, 0, {.async_op = true, .timeout = 500ms});
      const auto own = std::move(group);
      throw std::runtime_error("something else");
    } catch (const std::runtime_error&) {
      return;
    }
  });
}

class TwoDeathsTest : public FaultTest {};

TEST_F(TwoDeathsTest, AtOnceAreSurvived) {
  for (int trial = 0; trial < 6; ++trial) {
    const int first = trial % 4;
    const int second = (first + 1 + trial % 3) % 4;
    SCOPED_TRACE(std::to_string(first) + " and " + std::to_string(second));
    FaultScenario scenario(store(), 4, [&](Member& me) {
      auto group = me.join(20s);
      Scratch scratch(*group);
      me.say("made");
      me.attempt("operation", [&] {
        for (;;) group->all_reduce(scratch.shared());
      });
      me.attempt("shrink", [&] {
        while (group->size() > 2) group = group->shrink({.timeout = 10s});
        expect_all_reduce_works(*group, Scratch::large);
        group->barrier();
      });
    });
    scenario.hear_all("made");
    scenario.signal(first, SIGKILL);
    scenario.signal(second, SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == first || rank == second) continue;
      const auto lost = scenario.hear(rank, "operation");
      EXPECT_EQ(lost.type, "PeerLostError") << lost;
      EXPECT_THAT(lost.at_fault, ::testing::AnyOf(first, second)) << lost;
      const auto shrunk = scenario.hear(rank, "shrink");
      EXPECT_EQ(shrunk.type, "") << shrunk;
      EXPECT_EQ(scenario.end_of(rank), 0);
    }
    scenario.end_of(first);
    scenario.end_of(second);
  }
}

class WaitTest : public FaultTest {
 protected:
  /// Rank 1 is killed while the others are in an operation that it has not joined.
  void expect_noticed(int size, const std::string& title, const std::function<void(ProcessGroup&)>& wait) {
    SCOPED_TRACE(title);
    FaultScenario scenario(store(), size, [&](Member& me) {
      const auto group = me.join(4s);
      group->barrier();
      me.say("made");
      if (me.rank() == 1) Member::idle();
      me.attempt("operation", [&] { wait(*group); });
    });
    scenario.hear_all("made");
    const auto start = scenario.signal(1, SIGKILL);
    for (const auto& word : scenario.hear_all("operation", 1)) {
      EXPECT_EQ(word.type, "PeerLostError") << word;
      EXPECT_EQ(word.at_fault, 1) << word;
      EXPECT_LT(milliseconds_between(start, word.when), 1000) << word;
      note(title, word, milliseconds_between(start, word.when));
    }
    scenario.expect_end(1);
  }
};

TEST_F(WaitTest, ForAnySourceEndsWhenTheOnlyOneDies) {
  std::vector<float> data(4);
  expect_noticed(2, "killed, recv_any_source", [&](ProcessGroup& group) { group.recv_any_source(data); });
  expect_noticed(2, "killed, async recv_any_source",
                 [&](ProcessGroup& group) { group.recv_any_source(data, {.async_op = true}).wait(); });
}

TEST_F(WaitTest, ForAMonitoredBarrierEnds) {
  for (const int size : {2, 3}) {
    expect_noticed(size, "killed, monitored_barrier", [](ProcessGroup& group) { group.monitored_barrier(); });
  }
}

TEST_F(WaitTest, ForASplitEnds) {
  for (const int size : {2, 3}) {
    expect_noticed(size, "killed, split_group", [size](ProcessGroup& group) {
      std::vector<int> all(static_cast<std::size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      group.split_group(all);
    });
  }
}

TEST_F(WaitTest, ForTheBytesOfAllEnds) {
  for (const int size : {2, 3}) {
    expect_noticed(size, "killed, all_gather_bytes", [](ProcessGroup& group) { group.all_gather_bytes("some"); });
    expect_noticed(size, "killed, all_ok", [](ProcessGroup& group) { group.all_ok([] {}); });
  }
}

TEST_F(WaitTest, ForABatchEnds) {
  std::vector<float> data(4);
  expect_noticed(3, "killed, batch", [&](ProcessGroup& group) {
    auto batch = group.batch();
    batch.all_reduce(data);
    batch.all_reduce(data);
    batch.run().wait();
  });
}

}  // namespace
}  // namespace cohort::test
