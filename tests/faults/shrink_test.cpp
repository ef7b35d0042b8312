// SPDX-License-Identifier: BSD-3-Clause
//
// Shrinking to the ranks that are left, also when more ranks are lost meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <random>

#include "faults/fault_scenario.h"
#include "faults/operations.h"
#include "faults/where.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class ShrinkTest : public FaultTest, public ::testing::WithParamInterface<Where> {
 protected:
  static ProcessGroupPtr join(const Member& me) { return GetParam().join(me); }
};

/// Shrinks until a sum over exactly `left` ranks works.
ProcessGroupPtr shrink_to(ProcessGroupPtr group, int left) {
  for (;;) {
    group = group->shrink({.timeout = 10s});
    try {
      expect_all_reduce_works(*group, Scratch::large);
      if (group->size() == left) return group;
      group->barrier();
    } catch (const PeerLostError&) {
      continue;
    }
  }
}

TEST_P(ShrinkTest, SurvivesASecondDeathMeanwhile) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 24; ++trial) {
    const int first = trial % 4;
    const int second = (first + 1 + trial / 4 % 3) % 4;
    SCOPED_TRACE("first " + std::to_string(first) + ", then " + std::to_string(second));
    FaultScenario scenario(store(), 4, [&](Member& me) {
      auto group = join(me);
      me.say("made");
      if (me.rank() == first) Member::idle();
      me.attempt("operation", [&] { group->barrier(); });
      me.await_go();
      me.say("shrinks");
      me.attempt("shrink", [&] { group = shrink_to(group, 2); });
      me.await_go();
    });
    scenario.hear_all("made");
    scenario.signal(first, SIGKILL);
    scenario.hear_all("operation", first);
    scenario.go_all(first);
    scenario.hear(second, "shrinks");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    scenario.signal(second, SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == first || rank == second) continue;
      scenario.hear(rank, "shrinks");
      const auto word = scenario.hear(rank, "shrink");
      EXPECT_EQ(word.type, "") << word;
      scenario.go(rank);
      EXPECT_EQ(scenario.end_of(rank), 0);
    }
    EXPECT_EQ(scenario.end_of(first), 128 + SIGKILL);
    EXPECT_EQ(scenario.end_of(second), 128 + SIGKILL);
    if (HasFailure()) return;
  }
}

TEST_P(ShrinkTest, GoesDownToOneRank) {
  FaultScenario scenario(store(), 4, [&](Member& me) {
    auto group = join(me);
    me.say("made");
    for (int left = 3; left >= 1; --left) {
      if (me.rank() == left) Member::idle();
      me.attempt("operation", [&] { group->barrier(); });
      me.attempt("shrink", [&] { group = shrink_to(group, left); });
      EXPECT_EQ(group->global_ranks().size(), static_cast<std::size_t>(left));
    }
  });
  scenario.hear_all("made");
  for (int victim = 3; victim >= 1; --victim) {
    scenario.signal(victim, SIGKILL);
    for (int rank = 0; rank < victim; ++rank) {
      const auto lost = scenario.hear(rank, "operation");
      EXPECT_EQ(lost.type, "PeerLostError") << lost;
      EXPECT_EQ(lost.at_fault, victim) << lost;
      const auto shrunk = scenario.hear(rank, "shrink");
      EXPECT_EQ(shrunk.type, "") << shrunk;
    }
  }
  EXPECT_EQ(scenario.end_of(0), 0);
}

TEST_P(ShrinkTest, LeavesOutWhomItIsTold) {
  for (const bool with_death : {false, true}) {
    SCOPED_TRACE(with_death);
    FaultScenario scenario(store(), 4, [&](Member& me) {
      auto group = join(me);
      me.say("made");
      if (me.rank() == 3 && with_death) Member::idle();
      if (with_death) me.attempt("operation", [&] { group->barrier(); });
      const auto old = group;
      me.attempt("shrink", [&] {
        group = group->shrink({.excluded = {1}, .timeout = 10s});
        EXPECT_EQ(group == nullptr, me.rank() == 1);
        if (group == nullptr) return;
        EXPECT_EQ(group->global_ranks(), with_death ? std::vector<int>({0, 2}) : std::vector<int>({0, 2, 3}));
        expect_all_reduce_works(*group, Scratch::large);
      });
      me.attempt("old group", [&] { old->barrier(); });
    });
    scenario.hear_all("made");
    const int victim = with_death ? 3 : -1;
    if (with_death) {
      scenario.signal(victim, SIGKILL);
      scenario.hear_all("operation", victim);
    }
    for (const auto& word : scenario.hear_all("shrink", victim)) EXPECT_EQ(word.type, "") << word;
    for (const auto& word : scenario.hear_all("old group", victim)) EXPECT_NE(word.type, "") << word;
    scenario.expect_end(victim);
  }
}

TEST_P(ShrinkTest, NamesASurvivorThatDoesNotTakePart) {
  FaultScenario scenario(store(), 4, [&](Member& me) {
    const auto group = join(me);
    me.say("made");
    if (me.rank() == 3) Member::idle();
    me.attempt("operation", [&] { group->barrier(); });
    if (me.rank() != 1) me.attempt("shrink", [&] { group->shrink({.timeout = 300ms}); });
    me.await_go();
    if (GetParam().needs_store()) {
      if (me.rank() == 1) me.attempt("too late", [&] { group->shrink({.timeout = 5s}); });
      me.await_go();
      me.attempt("again", [&] {
        const auto rest = group->shrink({.timeout = 10s});
        EXPECT_EQ(rest->global_ranks(), std::vector<int>({0, 1, 2}));
        expect_all_reduce_works(*rest, 10);
        rest->barrier();
      });
    }
  });
  scenario.hear_all("made");
  const auto start = scenario.signal(3, SIGKILL);
  scenario.hear_all("operation", 3);
  for (const int rank : {0, 2}) {
    const auto word = scenario.hear(rank, "shrink");
    EXPECT_EQ(word.type, "OperationTimeoutError") << word;
    EXPECT_EQ(word.at_fault, 1) << word;
    EXPECT_LT(milliseconds_between(start, word.when), 3000);
  }
  scenario.go_all(3);
  if (GetParam().needs_store()) {
    // The one that comes later gets the error of that round, and all of them may try again.
    const auto late = scenario.hear(1, "too late");
    EXPECT_EQ(late.type, "OperationTimeoutError") << late;
    EXPECT_EQ(late.at_fault, 1) << late;
    scenario.go_all(3);
    for (const auto& word : scenario.hear_all("again", 3)) EXPECT_EQ(word.type, "") << word;
  }
  scenario.expect_end(3);
}

TEST_P(ShrinkTest, WorksForAnyVictimWhateverItsPeersDo) {
  for (int size = 2; size <= 5; ++size) {
    const int victim = (size * 2 + 1) % size;
    SCOPED_TRACE(std::to_string(victim) + " of " + std::to_string(size));
    FaultScenario scenario(store(), size, [&](Member& me) {
      auto group = join(me);
      Scratch scratch(*group);
      me.say("made");
      if (me.rank() == victim) {
        while (!me.is_told_to_go()) group->all_reduce(scratch.data(Scratch::large));
      }
      me.attempt("operation", [&] {
        for (;;) group->all_reduce(scratch.data(Scratch::large));
      });
      me.attempt("shrink", [&] {
        group = group->shrink({.timeout = 10s});
        EXPECT_EQ(group->size(), me.size() - 1);
        EXPECT_EQ(group->rank(), me.rank() - (me.rank() > victim ? 1 : 0));
        EXPECT_EQ(group->name(), GetParam().backend);
        expect_all_reduce_works(*group, 3);
        expect_all_reduce_works(*group, Scratch::large);
        group->barrier();
      });
    });
    scenario.hear_all("made");
    const auto start = scenario.signal(victim, SIGKILL);
    for (const auto& word : scenario.hear_all("operation", victim)) EXPECT_EQ(word.type, "PeerLostError") << word;
    for (const auto& word : scenario.hear_all("shrink", victim)) {
      EXPECT_EQ(word.type, "") << word;
      EXPECT_LT(milliseconds_between(start, word.when), 5000) << word;
    }
    scenario.expect_end(victim);
    if (HasFailure()) return;
  }
}

TEST_P(ShrinkTest, DoesNotWaitForARankThatHasLeft) {
  FaultScenario scenario(store(), 3, [&](Member& me) {
    auto group = join(me);
    me.say("made");
    if (me.rank() == 1) {
      group.reset();
      me.say("left");
      return me.await_go();
    }
    me.await_go();
    me.attempt("operation", [&] { group->barrier(); });
    me.attempt("shrink", [&] {
      group = group->shrink({.timeout = 10s});
      EXPECT_EQ(group->global_ranks(), std::vector<int>({0, 2}));
      expect_all_reduce_works(*group, 10);
      group->barrier();
    });
  });
  scenario.hear_all("made");
  scenario.hear(1, "left");
  scenario.go(0);
  scenario.go(2);
  for (const auto& word : scenario.hear_all("operation", 1)) EXPECT_EQ(word.type, "PeerLostError") << word;
  for (const auto& word : scenario.hear_all("shrink", 1)) EXPECT_EQ(word.type, "") << word;
  scenario.go(1);
  scenario.expect_end();
}

TEST_P(ShrinkTest, AlsoASplitOfTheGroup) {
  FaultScenario scenario(store(), 4, [&](Member& me) {
    const auto world = join(me);
    auto group = world->split_group({1, 2, 3});
    me.say("made");
    if (me.rank() == 2) Member::idle();
    if (group == nullptr) return me.await_go();
    me.attempt("operation", [&] { group->barrier(); });
    me.attempt("shrink", [&] {
      group = group->shrink({.timeout = 10s});
      EXPECT_EQ(group->global_ranks(), std::vector<int>({1, 3}));
      expect_all_reduce_works(*group, 10);
      group->barrier();
    });
    me.await_go();
  });
  scenario.hear_all("made");
  scenario.signal(2, SIGKILL);
  for (const int rank : {1, 3}) {
    const auto lost = scenario.hear(rank, "operation");
    EXPECT_EQ(lost.type, "PeerLostError") << lost;
    const auto shrunk = scenario.hear(rank, "shrink");
    EXPECT_EQ(shrunk.type, "") << shrunk;
  }
  scenario.go_all(2);
  scenario.expect_end(2);
}

TEST_P(ShrinkTest, NeedsTheStoreOnlyWhereItSaysSo) {
  std::optional<StoreHost> mortal(std::in_place);
  FaultScenario scenario(*mortal, 3, [&](Member& me) {
    auto group = join(me);
    me.say("made");
    if (me.rank() == 0) Member::idle();
    me.attempt("operation", [&] { group->barrier(); });
    me.await_go();
    if (me.attempt("shrink", [&] { group = shrink_to(group, 2); })) group->barrier();
  });
  scenario.hear_all("made");
  mortal.reset();
  scenario.signal(0, SIGKILL);
  for (const auto& word : scenario.hear_all("operation", 0)) EXPECT_EQ(word.type, "PeerLostError") << word;
  scenario.go_all(0);
  for (const auto& word : scenario.hear_all("shrink", 0)) {
    EXPECT_EQ(word.type, GetParam().needs_store() ? "BackendError" : "") << word;
    EXPECT_THAT(word.text, HasSubstr(GetParam().needs_store() ? "store cannot be reached" : ""));
  }
  scenario.expect_end(0);
}

TEST_P(ShrinkTest, LeaksNoDescriptors) {
  FaultScenario scenario(store(), 3, [&](Member& me) {
    const auto life = [&] {
      auto group = join(me);
      Scratch scratch(*group);
      group->all_reduce(scratch.data(Scratch::large));
      exchange_with_neighbours(*group, scratch, 300'000);
      const auto split = group->split_group({0, 1});
      group->barrier();
      return group;
    };
    life();  // the first one makes what the process keeps for good: its memory of the group
    const auto before = open_descriptors();
    {
      auto group = life();
      me.say("made");
      if (me.rank() == 1) Member::idle();
      me.attempt("operation", [&] { group->barrier(); });
      group = shrink_to(group, 2);
      group->barrier();
    }
    me.say("over", std::to_string(open_descriptors()) + " of " + std::to_string(before));
    EXPECT_EQ(open_descriptors(), before);
  });
  scenario.hear_all("made");
  scenario.signal(1, SIGKILL);
  scenario.hear_all("operation", 1);
  scenario.hear_all("over", 1);
  scenario.expect_end(1);
}

INSTANTIATE_TEST_SUITE_P(Backends, ShrinkTest, ::testing::ValuesIn(everywhere),
                         [](const auto& tested) { return to_string(tested.param); });

}  // namespace
}  // namespace cohort::test
