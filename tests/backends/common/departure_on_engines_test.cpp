// SPDX-License-Identifier: BSD-3-Clause
//
// A rank that is lost before the group is made, or leaves it: the same errors on every backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "backends/common/engine_ranks.h"
#include "faults/fault_scenario.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Where {
  std::string backend;
  int hosts = 0;

  friend void PrintTo(const Where& where, std::ostream* out) { *out << where.backend << " on " << where.hosts; }
};

class DepartureOn : public FaultTest, public ::testing::WithParamInterface<Where> {
 protected:
  void SetUp() override {
    const auto names = backend_names();
    if (std::find(names.begin(), names.end(), "gloo") == names.end()) GTEST_SKIP() << "this build has no gloo";
  }
  static ProcessGroupPtr join(const Member& me, const std::string& name, std::chrono::milliseconds timeout = 30s) {
    name_host(me.rank(), me.size(), GetParam().hosts);
    return new_group(GetParam().backend, timeout, "cpu", {},
                     {.store = me.open_store(), .rank = me.rank(), .size = me.size(), .name = name});
  }
};

enum class Way { killed, exits, unwinds };

void leave(Way way, ProcessGroupPtr group, const Member& me) {
  me.say("made");
  me.await_go();
  switch (way) {
    case Way::killed:
      Member::idle();
    case Way::exits:
      std::exit(0);
    case Way::unwinds:
      try {
        const auto own = std::move(group);
        throw std::runtime_error("something else than the group went wrong");
      } catch (const std::runtime_error&) {
        return;
      }
  }
}

TEST_P(DepartureOn, IsADeathOnlyIfTheRankDied) {
  constexpr int size = 3;
  for (const auto way : {Way::killed, Way::exits, Way::unwinds}) {
    for (const int victim : {1, 2}) {
      const auto name = "leaving " + std::to_string(static_cast<int>(way)) + std::to_string(victim);
      SCOPED_TRACE(name);
      FaultScenario scenario(store(), size, [&](Member& me) {
        auto group = join(me, name);
        group->barrier();
        if (me.rank() == victim) return leave(way, std::move(group), me);
        me.say("made");
        std::vector<float> data(4);
        me.attempt("operation", [&] {
          for (;;) group->all_reduce(data);
        });
        me.attempt("afterwards", [&] { group->barrier(); });
      });
      scenario.hear_all("made");
      scenario.go(victim);
      if (way == Way::killed) scenario.signal(victim, SIGKILL);
      EXPECT_EQ(scenario.end_of(victim), way == Way::killed ? 128 + SIGKILL : 0);
      const auto end = Clock::now();
      for (const auto& word : scenario.hear_all("operation", victim)) {
        EXPECT_EQ(word.type, "PeerLostError") << word;
        EXPECT_EQ(word.at_fault, victim) << word;
        if (way == Way::killed) {
          EXPECT_THAT(word.text, AnyOf(HasSubstr("has died"), HasSubstr("is gone")));
        } else {
          EXPECT_THAT(word.text, HasSubstr("rank " + std::to_string(victim) + " has left the group"));
        }
        EXPECT_LT(milliseconds_between(end, word.when), 1000) << word;
      }
      for (const auto& word : scenario.hear_all("afterwards", victim)) {
        EXPECT_EQ(word.type, "PeerLostError") << word;
        EXPECT_EQ(word.at_fault, victim) << word;
        EXPECT_THAT(word.text, HasSubstr("the group is broken since all_reduce #"));
      }
      scenario.expect_end(victim);
    }
  }
}

/// A call that is refused on one rank never reaches its peers. If the error makes that rank leave, they are told why.
TEST_P(DepartureOn, BecauseOfARefusedCallIsExplained) {
  FaultScenario scenario(store(), 3, [&](Member& me) {
    me.attempt("operation", [&] {
      const auto group = join(me, "refused call");
      std::vector<float> data(4);
      group->all_reduce(data);
      me.rank() == 1 ? group->broadcast(data, {.root = 7}) : group->all_reduce(data);
    });
  });
  EXPECT_EQ(scenario.hear(1, "operation").type, "ValueError");
  for (const int rank : {0, 2}) {
    const auto word = scenario.hear(rank, "operation");
    EXPECT_EQ(word.type, "PeerLostError") << word;
    EXPECT_EQ(word.at_fault, 1) << word;
    EXPECT_THAT(
        word.text,
        HasSubstr("rank 1 has left the group; its last error was: broadcast: root 7 is not a rank of this group"));
  }
  scenario.expect_end();
}

/// What a rank says in its last error is quoted, whatever it says.
TEST_P(DepartureOn, WithTheWordsOfAnotherFailureIsStillADeparture) {
  FaultScenario scenario(store(), 3, [&](Member& me) {
    me.attempt("operation", [&] {
      const auto group = join(me, "misleading words");
      std::vector<float> data(4);
      group->all_reduce(data);
      if (me.rank() == 1) throw ValueError("failure: 9 2 0 rank 2 is late");
      group->all_reduce(data);
    });
  });
  EXPECT_EQ(scenario.hear(1, "operation").type, "ValueError");
  for (const int rank : {0, 2}) {
    const auto word = scenario.hear(rank, "operation");
    EXPECT_EQ(word.type, "PeerLostError") << word;
    EXPECT_EQ(word.at_fault, 1) << word;
    EXPECT_THAT(word.text, HasSubstr("rank 1 has left the group; its last error was: failure: 9 2 0 rank 2 is late"));
  }
  scenario.expect_end();
}

/// Rank 0 never comes. Rank 1 joins and is killed; rank 2, which waits for both, does not wait until its deadline.
TEST_P(DepartureOn, BeforeTheGroupIsMadeIsNoticedAtOnce) {
  FaultScenario scenario(store(), 3, [&](Member& me) {
    if (me.rank() == 0) return;
    me.await_go();
    me.attempt("new_group", [&] { join(me, "making"); });
  });
  scenario.go(1);
  const auto words = std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = store().endpoint()});
  words->wait({"groups/making/1/id"}, 20s);  // rank 1 has begun to join, and waits for the others
  scenario.go(2);
  const auto start = scenario.signal(1, SIGKILL);
  const auto word = scenario.hear(2, "new_group");
  EXPECT_EQ(word.type, "PeerLostError") << word;
  EXPECT_EQ(word.at_fault, 1) << word;
  EXPECT_LT(milliseconds_between(start, word.when), 1000) << word;
  scenario.end_of(1);
  scenario.expect_end(1);
}

/// Gloo has something that a rank can get wrong alone.
class JoiningOn : public DepartureOn {};

/// A rank that cannot take part says so to those who wait for it.
TEST_P(JoiningOn, ThatFailsOnOneRankIsExplainedToTheOthers) {
  FaultScenario scenario(store(), 2, [&](Member& me) {
    if (me.rank() == 1) ::setenv("GLOO_SOCKET_IFNAME", "no_such_interface", 1);
    me.attempt("new_group", [&] { join(me, "refused"); });
  });
  const auto start = Clock::now();
  EXPECT_EQ(scenario.hear(1, "new_group").type, "ValueError");
  const auto word = scenario.hear(0, "new_group");
  EXPECT_EQ(word.at_fault, 1) << word;
  EXPECT_THAT(word.text, HasSubstr("rank 1 could not join"));
  EXPECT_THAT(word.text, HasSubstr("no_such_interface"));
  EXPECT_LT(milliseconds_between(start, word.when), 5000) << word;
  scenario.expect_end();
}

INSTANTIATE_TEST_SUITE_P(Backends, DepartureOn,
                         ::testing::Values(Where{"shm"}, Where{"auto"}, Where{"auto", 2}, Where{"hybrid"},
                                           Where{"hybrid", 2}, Where{"gloo"}),
                         [](const auto& each) {
                           return each.param.backend +
                                  (each.param.hosts == 0 ? "" : "On" + std::to_string(each.param.hosts));
                         });

INSTANTIATE_TEST_SUITE_P(Backends, JoiningOn, ::testing::Values(Where{"gloo"}),
                         [](const auto& each) { return each.param.backend; });

}  // namespace
}  // namespace cohort::test
