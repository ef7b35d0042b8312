// SPDX-License-Identifier: BSD-3-Clause
//
// A rank is lost before or during the making of a group: no rank gets a partial group or waits past its deadline.
#include <cohort/new_group.h>
#include <cohort/rendezvous.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <random>
#include <string>

#include <unistd.h>

#include "backends/shm/protocol/agreement.h"
#include "faults/fault_scenario.h"
#include "faults/operations.h"
#include "store/socket.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class MakingTest : public FaultTest {};

TEST_F(MakingTest, ARankThatNeverComesIsNamedAtTheDeadline) {
  constexpr auto deadline = 500ms;
  for (const int size : {2, 3, 4}) {
    for (const int victim : {0, size - 1}) {
      const auto title = "dead before new_group, rank " + std::to_string(victim) + " of " + std::to_string(size);
      SCOPED_TRACE(title);
      FaultScenario scenario(store(), size, [&](Member& me) {
        if (me.rank() == victim) return;
        me.attempt("new_group", [&] { me.join(deadline); });
      });
      const auto start = Clock::now();
      for (const auto& word : scenario.hear_all("new_group", victim)) {
        EXPECT_THAT(word.type, ::testing::AnyOf("OperationTimeoutError", "StoreTimeoutError")) << word;
        // A rank that does not find the root's key knows only that it is missing.
        if (victim != 0) {
          EXPECT_EQ(word.at_fault, victim) << word;
        }
        EXPECT_LT(milliseconds_between(start, word.when), deadline.count() + 400);
        note(title, word, milliseconds_between(start, word.when));
      }
      scenario.expect_end();
    }
  }
}

/// A rank that is lost while a part is made, after the parts were told apart: the ranks of other parts are at their
/// next operation then, and all of the part's ranks are late to them.
TEST_F(MakingTest, ARankMissingInOnePartIsNamedInTheOthersToo) {
  constexpr int victim = 1;
  for (const std::string backend : {"shm", "hybrid", "gloo"}) {
    SCOPED_TRACE(backend);
    FaultScenario scenario(store(), 3, [&](Member& me) {
      const auto group = new_group(backend, 2s, "cpu", {},
                                   {.store = me.open_store(), .rank = me.rank(), .size = me.size(), .name = backend});
      if (me.rank() == victim) {
        // What all ranks of the parent do first, and nothing more: a barrier, or the exchange of tickets.
        if (backend == "gloo") {
          group->split_group({0});
        } else {
          std::vector<std::byte> mine(shm::ticket_bytes);
          std::vector<std::byte> all(3 * shm::ticket_bytes);
          group->all_gather(all, mine);
        }
        return me.await_go();
      }
      me.attempt("operation", [&] {
        group->partition({{0, victim}, {2}});
        group->barrier();
      });
      me.await_go();
    });
    for (const auto& word : scenario.hear_all("operation", victim)) {
      EXPECT_EQ(word.type, "OperationTimeoutError") << word;
      EXPECT_EQ(word.at_fault, victim) << word;
      EXPECT_THAT(word.text, ::testing::Not(::testing::HasSubstr("after 0 ms"))) << word;
    }
    scenario.go_all();
    scenario.expect_end();
  }
}

TEST_F(MakingTest, ARankKilledMeanwhileIsAnErrorForAllOrNone) {
  std::mt19937 random(17);
  int made_without = 0;
  for (int trial = 0; trial < 24; ++trial) {
    const int size = 2 + trial % 3;
    const int victim = trial % size;
    SCOPED_TRACE("rank " + std::to_string(victim) + " of " + std::to_string(size));
    FaultScenario scenario(store(), size, [&](Member& me) {
      ProcessGroupPtr group;
      me.say("joins");
      if (!me.attempt("new_group", [&] { group = me.join(400ms); }) || me.rank() == victim) return;
      me.attempt("operation", [&] {
        for (;;) group->barrier();
      });
    });
    scenario.hear(victim, "joins");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    scenario.signal(victim, SIGKILL);
    int made = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      scenario.hear(rank, "joins");
      const auto word = scenario.hear(rank, "new_group");
      if (word.type.empty()) {
        ++made;
        const auto lost = scenario.hear(rank, "operation");
        EXPECT_EQ(lost.type, "PeerLostError") << lost;
        EXPECT_EQ(lost.at_fault, victim) << lost;
      } else {
        EXPECT_THAT(word.type, ::testing::AnyOf("OperationTimeoutError", "StoreTimeoutError", "PeerLostError")) << word;
        if (word.at_fault >= 0) {
          EXPECT_THAT(word.at_fault, ::testing::AnyOf(victim, 0)) << word;
        }
      }
    }
    EXPECT_THAT(made, ::testing::AnyOf(0, size - 1)) << "some ranks have a group, others an error";
    if (made != 0) ++made_without;
    scenario.expect_end(victim);
    scenario.end_of(victim);
    if (HasFailure()) return;
  }
  std::cout << "[  scenario   ] killed after the group was made: " << made_without << " of 24\n";
}

TEST_F(MakingTest, AGroupLeavesACounterOfItsNameForEachRankAndNothingElse) {
  constexpr int ranks = 3;
  for (const std::string backend : {"shm", "auto", "hybrid", "gloo"}) {
    SCOPED_TRACE(backend);
    const auto make = [&](Member& me, const std::string& name) {
      new_group(backend, 20s, "cpu", {},
                {.store = me.open_store(), .rank = me.rank(), .size = me.size(), .name = backend + name});
    };
    FaultScenario scenario(store(), ranks, [&](Member& me) {
      make(me, "");
      me.say("once");
      me.await_go();
      for (const auto* name : {"", "", "another", "a third"}) make(me, name);
      me.say("again");
      me.await_go();
    });
    const auto keys = std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = store().endpoint(), .timeout = 20s});
    scenario.hear_all("once");
    const auto once = keys->num_keys();
    scenario.go_all();
    scenario.hear_all("again");
    EXPECT_EQ(keys->num_keys(), once + 2 * ranks) << "two more names";
    scenario.go_all();
    scenario.expect_end();
  }
}

/// A job that was started by hand, with its store in rank 0.
void set_variables(const Member& me, std::uint16_t port) {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(me.rank()));
  set("WORLD_SIZE", std::to_string(me.size()));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
}

/// The socket keeps the port from everybody else; the job's store is a unix socket that is named after it.
class JobTest : public FaultTest {
 protected:
  std::uint16_t port() const { return bound_endpoint(listener_.get()).port; }

 private:
  FileDescriptor listener_ = listen_on(Endpoint::tcp("127.0.0.1", 0));
};

/// Rank 3 does not come, so all others are in the rendezvous when one of them is killed.
TEST_F(JobTest, ARankKilledInTheRendezvousIsNamedAtOnce) {
  constexpr int size = 4;
  constexpr auto deadline = 3s;
  std::mt19937 random(31);
  int at_once = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const int victim = trial % 3;
    SCOPED_TRACE("rank " + std::to_string(victim));
    FaultScenario scenario(store(), size, [&](Member& me) {
      set_variables(me, port());
      const auto store = rendezvous("env://").store;
      me.say("met");
      me.await_go();
      if (me.rank() == 3) return me.await_go();
      me.attempt("new_group", [&] { new_group("shm", deadline, "cpu"); });
      me.await_go();  // rank 0 has the store
    });
    scenario.hear_all("met");
    scenario.go_all(3);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    const auto start = scenario.signal(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const auto word = scenario.hear(rank, "new_group");
      EXPECT_EQ(word.at_fault, victim) << word;
      if (milliseconds_between(start, word.when) < 1000) ++at_once;
    }
    scenario.go_all(victim);
    scenario.go(3);
    scenario.expect_end(victim);
    scenario.end_of(victim);
    if (HasFailure()) return;
  }
  EXPECT_GT(at_once, 8) << "of 24";
}

TEST_F(JobTest, ARankKilledAtAnyMomentIsNamed) {
  std::mt19937 random(37);
  for (int trial = 0; trial < 18; ++trial) {
    const int victim = trial % 3;
    const std::string backend = trial % 2 == 0 ? "shm" : "gloo";
    SCOPED_TRACE(backend + ", rank " + std::to_string(victim));
    FaultScenario scenario(store(), 3, [&](Member& me) {
      set_variables(me, port());
      const auto store = rendezvous("env://").store;
      me.say("met");
      me.await_go();
      ProcessGroupPtr group;
      if (!me.attempt("new_group", [&] { group = new_group(backend, 1500ms, "cpu"); }) || me.rank() == victim) return;
      me.attempt("operation", [&] {
        for (;;) group->barrier();
      });
    });
    scenario.hear_all("met");
    scenario.go_all();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12'000));
    scenario.signal(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      auto word = scenario.hear(rank, "new_group");
      if (word.type.empty()) word = scenario.hear(rank, "operation");
      // A rank that has died may be named by way of one that gave up because of it.
      EXPECT_GE(word.at_fault, 0) << word;
      EXPECT_NE(word.at_fault, rank) << word;
    }
    scenario.expect_end(victim);
    scenario.end_of(victim);
    if (HasFailure()) return;
  }
}

/// The first rank that is told that the group was made kills rank 0, which is still telling the others.
TEST_F(MakingTest, RankZeroKilledWhileItSaysGoIsAGroupForAllOrNone) {
  constexpr int size = 12;
  for (int trial = 0; trial < 8; ++trial) {
    SCOPED_TRACE(trial);
    const auto key = "pid of rank 0, " + std::to_string(trial);
    FaultScenario scenario(store(), size, [&](Member& me) {
      const auto words = me.open_store();
      if (me.rank() == 0) words->set(key, std::to_string(::getpid()));
      const auto root = std::stoi(words->get(key));
      ProcessGroupPtr group;
      const bool is_made = me.attempt("new_group", [&] { group = me.join(5s); });
      if (me.rank() == 1) ::kill(root, SIGKILL);
      if (!is_made || me.rank() == 0) return;
      me.attempt("operation", [&] {
        for (;;) group->barrier();
      });
    });
    int made = 0;
    for (int rank = 1; rank < size; ++rank) {
      if (!scenario.hear(rank, "new_group").type.empty()) continue;
      ++made;
      const auto lost = scenario.hear(rank, "operation");
      EXPECT_EQ(lost.type, "PeerLostError") << lost;
      EXPECT_EQ(lost.at_fault, 0) << lost;
    }
    EXPECT_EQ(made, size - 1) << "rank 1 had the group";
    scenario.expect_end(0);
    scenario.end_of(0);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cohort::test
