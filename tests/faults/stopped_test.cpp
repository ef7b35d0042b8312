// SPDX-License-Identifier: BSD-3-Clause
//
// A rank is stopped (SIGSTOP): it neither answers nor dies. The others time out at their deadline and name it. When it
// is continued it gets an error, and it cannot write to memory that the others use by then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <random>

#include "faults/fault_scenario.h"
#include "faults/operations.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class StoppedTest : public FaultTest, public ::testing::WithParamInterface<InterruptedOperation> {};

bool is_message(const InterruptedOperation& operation) {
  return std::string_view(operation.name).ends_with("Message");
}

TEST_P(StoppedTest, RankIsNamedAtTheDeadlineAndToldWhenItGoesOn) {
  constexpr auto deadline = 400ms;
  static std::mt19937 random{11};
  for (const int size : {2, 3, 5}) {
    const int victim = 1;
    const auto title = "stopped during " + std::string(GetParam().name) + ", rank " + std::to_string(victim) + " of " +
                       std::to_string(size);
    SCOPED_TRACE(title);
    FaultScenario scenario(store(), size, [&](Member& me) {
      const auto group = me.join(20s);
      Scratch scratch(*group);
      group->barrier();
      group->set_timeout(deadline);
      me.say("made");
      me.attempt("operation", [&] {
        for (;;) GetParam().run(*group, scratch);
      });
      me.await_go();
    });
    scenario.hear_all("made");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    const auto start = scenario.signal(victim, SIGSTOP);
    std::int64_t slowest = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      const auto word = scenario.hear(rank, "operation");
      EXPECT_EQ(word.type, "OperationTimeoutError") << word;
      EXPECT_EQ(word.at_fault, victim) << word;
      slowest = std::max(slowest, milliseconds_between(start, word.when));
      if (rank == 0) note(title, word, slowest);
    }
    EXPECT_LT(slowest, (is_message(GetParam()) ? 2 : 1) * deadline.count() + 400);
    scenario.signal(victim, SIGCONT);
    const auto woke = scenario.hear(victim, "operation");
    EXPECT_NE(woke.type, "") << woke;
    scenario.go_all();
    scenario.expect_end();
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoppedTest, ::testing::ValuesIn(interrupted_operations),
                         [](const auto& each) { return std::string(each.param.name); });

/// Rank 2 waits for rank 1, which waits for rank 0, which waits for rank 3.
class ChainTest : public FaultTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ChainTest, IsFollowedToItsEnd) {
  const std::string_view how = GetParam();
  FaultScenario scenario(store(), 4, [&](Member& me) {
    const auto group = me.join(20s);
    group->barrier();
    group->set_timeout(1s);  // long beside what ranks begin apart on a busy machine
    me.say("made");
    if (me.rank() == 3) return me.await_go();
    const int previous = (me.rank() + 3) % 4;
    const int next = (me.rank() + 1) % 4;
    std::vector<int> in(20'000);
    const std::vector<int> out(in.size());
    me.attempt("operation", [&] {
      if (how == "recv") {
        group->recv(in, previous);
      } else if (how == "send") {
        group->send(out, previous);
      } else if (how == "work") {
        // Nobody waits for this one.
        const auto idle = group->send(out, next, {.tag = 2, .async_op = true, .timeout = 3s});
        group->recv(in, previous, {.async_op = true}).wait();
      } else if (how == "batch") {
        auto batch = group->batch();
        batch.recv(in, previous);
        batch.recv(in, previous, {.tag = 2});
        batch.run();
      } else if (me.rank() == 0) {
        group->recv(in, 3, {.timeout = 2s});
      } else {
        group->barrier();
      }
    });
    me.await_go();
  });
  scenario.hear_all("made");
  scenario.signal(3, SIGSTOP);
  for (const int rank : {0, 1, 2}) {
    const auto word = scenario.hear(rank, "operation");
    EXPECT_EQ(word.type, "OperationTimeoutError") << word;
    EXPECT_EQ(word.at_fault, 3) << word;
    if (how == "collective") {
      EXPECT_THAT(word.text, ::testing::HasSubstr("rank 0, which waits for rank 3")) << word;
    } else if (how != "batch" && rank == 2) {
      EXPECT_THAT(word.text, ::testing::HasSubstr("rank 1, which waits for rank 0, which waits for rank 3")) << word;
    }
  }
  scenario.signal(3, SIGCONT);
  scenario.go_all();
  scenario.expect_end();
}

INSTANTIATE_TEST_SUITE_P(All, ChainTest, ::testing::Values("recv", "send", "work", "batch", "collective"),
                         [](const auto& each) { return std::string(each.param); });

class CircleTest : public FaultTest {};

TEST_F(CircleTest, HasNoEndSoEachNamesTheNext) {
  FaultScenario scenario(store(), 3, [&](Member& me) {
    const auto group = me.join(20s);
    group->barrier();
    std::vector<int> in(4);
    me.attempt("operation", [&] { group->recv(in, (me.rank() + 2) % 3, {.timeout = 300ms}); });
    me.await_go();
  });
  for (const int rank : {0, 1, 2}) {
    const auto word = scenario.hear(rank, "operation");
    EXPECT_EQ(word.type, "OperationTimeoutError") << word;
    EXPECT_EQ(word.at_fault, (rank + 2) % 3) << word;
  }
  scenario.go_all();
  scenario.expect_end();
}

class PauseTest : public FaultTest {};
class StoppedInShrinkTest : public FaultTest {};

TEST_F(PauseTest, ShorterThanTheDeadlineHurtsNobody) {
  FaultScenario scenario(store(), 3, [](Member& me) {
    const auto group = me.join(20s);
    Scratch scratch(*group);
    me.say("made");
    me.attempt("operations", [&] {
      for (int i = 0; i < 60; ++i) {
        expect_all_reduce_works(*group, i % 2 == 0 ? Scratch::large : 8);
        exchange_with_neighbours(*group, scratch, 20'000);
        std::fill(scratch.shared().begin(), scratch.shared().end(), 1.0F);
        group->barrier();
        group->all_reduce(scratch.shared());
        EXPECT_EQ(scratch.shared().front(), 3.0F);
        EXPECT_EQ(scratch.shared().back(), 3.0F);
      }
    });
  });
  scenario.hear_all("made");
  std::mt19937 random(23);
  for (int pause = 0; pause < 12; ++pause) {
    const int rank = pause % 3;
    scenario.signal(rank, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + random() % 30));
    scenario.signal(rank, SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
  }
  for (const auto& word : scenario.hear_all("operations")) EXPECT_EQ(word.type, "") << word;
  scenario.expect_end();
}

TEST_F(StoppedInShrinkTest, IsNamedByTheOthers) {
  FaultScenario scenario(store(), 4, [](Member& me) {
    const auto group = me.join(20s);
    me.say("made");
    if (me.rank() == 0) Member::idle();
    me.attempt("operation", [&] { group->barrier(); });
    me.await_go();
    me.attempt("shrink", [&] { group->shrink({.timeout = 500ms}); });
    me.await_go();
  });
  scenario.hear_all("made");
  scenario.signal(0, SIGKILL);
  scenario.hear_all("operation", 0);
  scenario.signal(2, SIGSTOP);
  const auto start = Clock::now();
  scenario.go_all(0);
  for (const int rank : {1, 3}) {
    const auto word = scenario.hear(rank, "shrink");
    EXPECT_EQ(word.type, "OperationTimeoutError") << word;
    EXPECT_EQ(word.at_fault, 2) << word;
    EXPECT_LT(milliseconds_between(start, word.when), 900);
  }
  scenario.signal(2, SIGCONT);
  const auto woke = scenario.hear(2, "shrink");
  EXPECT_NE(woke.type, "") << woke;
  scenario.go_all(0);
  scenario.expect_end(0);
}

class LatePeerTest : public FaultTest {};

/// Fills `bytes` so that every later write to them can be detected.
std::uint64_t fingerprint(std::span<const float> data) {
  std::uint64_t hash = 14695981039346656037U;
  for (const float each : data) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &each, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211U;
  }
  return hash;
}

TEST_F(LatePeerTest, WritesIntoMemoryNobodyUsesAnyMore) {
  constexpr std::size_t elements = 4 << 20;
  constexpr int victim = 1;
  std::mt19937 random(5);
  int late_writes = 0;
  for (int trial = 0; trial < 15 && late_writes < 2; ++trial) {
    SCOPED_TRACE(trial);
    FaultScenario scenario(store(), 3, [&](Member& me) {
      auto group = me.join(20s);
      auto memory = group->allocate(elements * sizeof(float));
      const auto old = memory.as<float>();
      std::fill(old.begin(), old.end(), static_cast<float>(me.rank() + 1));
      group->barrier();
      group->set_timeout(300ms);
      me.say("made");
      me.attempt("operation", [&] {
        for (;;) group->all_reduce(memory.as<float>(), {.op = ReduceOp::avg()});
      });
      if (me.rank() == victim) return;
      group = group->shrink({.excluded = {victim}, .timeout = 10s});
      EXPECT_EQ(group->size(), 2);
      group->set_timeout(20s);  // the short one was for the stopped rank; to compare 16 MiB, each has its own speed
      memory = {};
      const auto fresh = group->allocate(elements * sizeof(float));
      const auto data = fresh.as<float>();
      EXPECT_TRUE(data.data() >= old.data() + old.size() || data.data() + data.size() <= old.data());
      const auto pattern = static_cast<float>(me.rank()) + 0.5F;
      std::fill(data.begin(), data.end(), pattern);
      // The old memory is still mapped but unused: it shows whether the late peer wrote at all.
      std::fill(old.begin(), old.end(), -1.0F);
      const auto before = fingerprint(old);
      me.say("moved");
      me.await_go();
      EXPECT_TRUE(std::all_of(data.begin(), data.end(), [&](float each) { return each == pattern; }))
          << "the late peer wrote into the new group's memory";
      me.say("checked", fingerprint(old) == before ? "" : "a late write");
      group->all_reduce(data);
      EXPECT_EQ(data.back(), 3.0F);
    });
    scenario.hear_all("made");
    std::this_thread::sleep_for(std::chrono::microseconds(10'000 + random() % 30'000));
    scenario.signal(victim, SIGSTOP);
    for (const auto& word : scenario.hear_all("operation", victim)) {
      EXPECT_EQ(word.type, "OperationTimeoutError") << word;
      EXPECT_EQ(word.at_fault, victim) << word;
    }
    scenario.hear_all("moved", victim);
    scenario.signal(victim, SIGCONT);
    const auto woke = scenario.hear(victim, "operation");
    EXPECT_NE(woke.type, "") << woke;
    scenario.go_all(victim);
    bool wrote = false;
    for (const auto& word : scenario.hear_all("checked", victim)) wrote = wrote || !word.text.empty();
    if (wrote) ++late_writes;
    scenario.expect_end();
    if (HasFailure()) break;
  }
  EXPECT_GT(late_writes, 0) << "the peer was never stopped while it wrote, so this test has shown nothing";
}

}  // namespace
}  // namespace cohort::test
