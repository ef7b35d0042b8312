// SPDX-License-Identifier: BSD-3-Clause
//
// Taking in processes that replace lost ranks, and what happens if one of those involved dies meanwhile.
#include <cohort/hash_store.h>
#include <cohort/prefix_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <random>

#include "faults/fault_scenario.h"
#include "faults/operations.h"
#include "faults/where.h"
#include "group/join_queue.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// The processes of a scenario are the ranks of a group, and one more that is started with them but joins later.
class GrowTest : public FaultTest, public ::testing::WithParamInterface<Where> {
 protected:
  static constexpr int ranks = 3;
  static constexpr int newcomer = ranks;

  static ProcessGroupPtr make(const Member& me) { return GetParam().join(me, ranks); }
  static ProcessGroupPtr join_as(const Member& me, int rank, std::chrono::milliseconds timeout = 20s) {
    name_host(rank, ranks, GetParam().hosts);
    return join_group(GetParam().backend, timeout, "cpu", {},
                      {.store = me.open_store(), .rank = rank, .name = me.name()});
  }
  /// Shrinks until all who are left can compute a sum.
  static ProcessGroupPtr recover(ProcessGroupPtr group) {
    for (;;) {
      try {
        expect_all_reduce_works(*group, 10);
        return group;
      } catch (const BackendError&) {
        group = group->shrink({.timeout = 10s});
      }
    }
  }
};

TEST_P(GrowTest, ReplacesALostRankAndMayLoseItAgain) {
  for (int victim = 0; victim < ranks; ++victim) {
    SCOPED_TRACE("victim " + std::to_string(victim));
    FaultScenario scenario(store(), ranks + 1, [&](Member& me) {
      ProcessGroupPtr group;
      if (me.rank() == newcomer) {
        me.await_go();
        me.attempt("grow", [&] { group = join_as(me, victim); });
      } else {
        group = make(me);
        me.say("made");
        if (me.rank() == victim) Member::idle();
        me.attempt("operation", [&] { group->barrier(); });
        me.attempt("grow", [&] {
          const auto rest = group->shrink({.timeout = 10s});
          group = rest->grow({.at_least = 1, .timeout = 10s});
          EXPECT_NE(group, rest);
          EXPECT_EQ(group->rank(), rest->rank());
          rest->barrier();  // it stays usable
        });
      }
      std::vector<int> members;
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank != victim) members.push_back(rank);
      }
      members.push_back(victim);
      EXPECT_EQ(group->global_ranks(), members);
      EXPECT_EQ(group->name(), GetParam().backend);
      me.attempt("work", [&] {
        expect_all_reduce_works(*group, Scratch::large);
        std::vector<float> parameters(100, group->rank() == 0 ? 7.0F : 0.0F);
        group->broadcast(parameters);
        EXPECT_EQ(parameters, std::vector<float>(100, 7.0F));
        group->barrier();
      });
      if (me.rank() == newcomer) Member::idle();
      me.attempt("second loss", [&] {
        group = recover(group);
        EXPECT_EQ(group->size(), ranks - 1);
        group->barrier();
      });
    });
    for (int rank = 0; rank < ranks; ++rank) scenario.hear(rank, "made");
    scenario.signal(victim, SIGKILL);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != victim) scenario.hear(rank, "operation");
    }
    scenario.go(newcomer);
    for (const auto& word : scenario.hear_all("grow", victim)) EXPECT_EQ(word.type, "") << word;
    for (const auto& word : scenario.hear_all("work", victim)) EXPECT_EQ(word.type, "") << word;
    scenario.signal(newcomer, SIGKILL);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      const auto word = scenario.hear(rank, "second loss");
      EXPECT_EQ(word.type, "") << word;
      EXPECT_EQ(scenario.end_of(rank), 0);
    }
    scenario.end_of(victim);
    scenario.end_of(newcomer);
    if (HasFailure()) return;
  }
}

TEST_P(GrowTest, IsTheSameGroupIfNobodyWaits) {
  FaultScenario scenario(store(), ranks, [&](Member& me) {
    const auto group = make(me);
    me.attempt("grow", [&] {
      EXPECT_EQ(group->grow(), group);
      EXPECT_EQ(group->grow({.at_least = 1, .timeout = 300ms}), group);
      expect_all_reduce_works(*group, 10);
      group->barrier();
    });
  });
  for (const auto& word : scenario.hear_all("grow")) EXPECT_EQ(word.type, "") << word;
  scenario.expect_end();
}

TEST_P(GrowTest, ANewcomerThatGaveUpOrIsRefusedHarmsNobody) {
  FaultScenario scenario(store(), ranks + 1, [&](Member& me) {
    if (me.rank() == newcomer) {
      me.attempt("gives up", [&] { join_as(me, 5, 300ms); });
      me.attempt("is refused", [&] { join_as(me, 1); });
      me.attempt("joins", [&] {
        const auto group = join_as(me, 5);
        expect_all_reduce_works(*group, 10);
        group->barrier();
      });
      return;
    }
    const auto group = make(me);
    me.await_go();
    // The first request was withdrawn, the second is refused, the third is admitted.
    me.attempt("joins", [&] {
      const auto larger = group->grow({.at_least = 1, .timeout = 10s});
      EXPECT_EQ(larger->global_ranks(), std::vector<int>({0, 1, 2, 5}));
      expect_all_reduce_works(*larger, 10);
      larger->barrier();
    });
  });
  const auto late = scenario.hear(newcomer, "gives up");
  EXPECT_EQ(late.type, "OperationTimeoutError") << late;
  scenario.go_all(newcomer);
  const auto refused = scenario.hear(newcomer, "is refused");
  EXPECT_EQ(refused.type, "ValueError") << refused;
  EXPECT_THAT(refused.text, HasSubstr("rank 1 is held"));
  for (const auto& word : scenario.hear_all("joins")) EXPECT_EQ(word.type, "") << word;
  scenario.expect_end();
}

/// Kills a process at a random moment of a growth. Whatever happens, those that are left can shrink and work.
TEST_P(GrowTest, SurvivesADeathMeanwhile) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 8; ++trial) {
    const int victim = trial % (ranks + 1);
    SCOPED_TRACE("victim " + std::to_string(victim) + ", trial " + std::to_string(trial));
    FaultScenario scenario(store(), ranks + 1, [&](Member& me) {
      if (me.rank() == newcomer) {
        me.say("grows");
        me.attempt("end", [&] {
          auto group = join_as(me, 9, 2s);
          recover(group)->barrier({.timeout = 4s});
        });
        return;
      }
      auto group = make(me);
      me.say("made");
      me.await_go();
      me.say("grows");
      me.attempt("end", [&] {
        try {
          group = group->grow({.at_least = 1, .timeout = 1500ms});
        } catch (const BackendError&) {
          group = group->shrink({.timeout = 10s});
        }
        recover(group);
      });
    });
    for (int rank = 0; rank < ranks; ++rank) scenario.hear(rank, "made");
    scenario.hear(newcomer, "grows");
    scenario.go_all(newcomer);
    if (victim != newcomer) scenario.hear(victim, "grows");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    scenario.signal(victim, SIGKILL);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      scenario.hear(rank, "grows");
      const auto word = scenario.hear(rank, "end");
      EXPECT_EQ(word.type, "") << word;
    }
    if (victim != newcomer) scenario.hear(newcomer, "end");
    for (int rank = 0; rank <= ranks; ++rank) scenario.end_of(rank);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GrowTest, ::testing::ValuesIn(everywhere),
                         [](const auto& tested) { return to_string(tested.param); });

TEST(GrowOfThreads, ThreadsJoinToo) {
  const auto store = std::make_shared<HashStore>();
  as_threads(4, [&](int rank) {
    const GroupMembers members{.store = store, .rank = rank, .size = 2};
    const auto group = rank < 2 ? new_group("thread", 20s, "cpu", {}, members)->grow({.at_least = 2, .timeout = 20s})
                                : join_group("thread", 20s, "cpu", {}, members);
    EXPECT_EQ(group->global_ranks(), std::vector<int>({0, 1, 2, 3}));
    expect_all_reduce_works(*group, 10);
  });
}

/// Two groups may have one name, and grow at the same time: each gets one of two newcomers, which come one by one.
TEST(GrowOfThreads, ANewcomerIsClaimedByOneGroupOnly) {
  for (int trial = 0; trial < 10; ++trial) {
    const auto store =
        std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = Endpoint::tcp("127.0.0.1", 0), .is_host = true});
    as_threads(3, [&](int rank) {
      JoinQueue queue(store, "");
      if (rank == 0) {
        for (const int wanted : {7, 8}) EXPECT_TRUE(queue.ask(wanted, "thread", Deadline::after(10s)));
        return;
      }
      const auto requests = queue.requests({}, "thread", 1, Deadline::after(5s));
      EXPECT_EQ(requests.size(), 1U);
      for (const auto& each : requests) queue.admit(each, {.global_ranks = {each.global_rank}});
    });
    if (HasFailure()) return;
  }
}

/// Another group of its name has served the request for which it waits, which is gone.
TEST(GrowOfThreads, AGroupGoesOnToTheNextRequest) {
  const auto store =
      std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = Endpoint::tcp("127.0.0.1", 0), .is_host = true});
  auto growing = start_waiting([&] {
    JoinQueue queue(store, "");
    const auto requests = queue.requests({}, "thread", 1, Deadline::after(10s));
    for (const auto& each : requests) queue.admit(each, {.global_ranks = {each.global_rank}});
    return requests.size();
  });
  PrefixStore keys("join_queue/", store->clone());
  for (const auto* const counter : {"tickets", "served"}) keys.add(counter, 1);
  EXPECT_TRUE(JoinQueue(store, "").ask(7, "thread", Deadline::after(5s)));
  EXPECT_EQ(growing.get(), 1U);
}

TEST(GrowOfThreads, APartOfAGroupDoesNotGrow) {
  const auto store = std::make_shared<HashStore>();
  as_threads(2, [&](int rank) {
    const auto group = new_group("thread", 20s, "cpu", {}, {.store = store, .rank = rank, .size = 2});
    EXPECT_ERROR(NotSupportedError, group->split_group({0, 1})->grow(), "new_group");
  });
  const auto fake = new_group("fake", 20s, "cpu", {}, {.store = store, .rank = 0, .size = 2, .name = "fake"});
  EXPECT_ERROR(NotSupportedError, fake->grow(), "fake");
}

}  // namespace
}  // namespace cohort::test
