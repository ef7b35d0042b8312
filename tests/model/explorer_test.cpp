// SPDX-License-Identifier: BSD-3-Clause
#include "model/explorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace cohort::model::test {
namespace {

using ::testing::HasSubstr;

using enum std::memory_order;
constexpr Options all{.search = Search::exhaustive, .executions = 1'000'000};

struct Words {
  Atomic<std::uint32_t> a{0};
  Atomic<std::uint32_t> b{0};
};

Words& named_words(Program& program) {
  auto& words = program.make<Words>();
  name(words.a, "a");
  name(words.b, "b");
  return words;
}

/// Two threads, each with the given number of stores of its own.
Report stores(const Options& options, int first, int second) {
  return explore(options, [=](Program& program) {
    auto& words = named_words(program);
    program.thread("first", [=, &words] {
      for (int i = 0; i < first; ++i) words.a.store(1, relaxed);
    });
    program.thread("second", [=, &words] {
      for (int i = 0; i < second; ++i) words.b.store(1, relaxed);
    });
  });
}

TEST(ExplorerTest, ExhaustiveMeansEachInterleavingOnce) {
  for (const auto& [first, second, interleavings] :
       {std::array{1, 1, 2}, {2, 2, 6}, {3, 3, 20}, {2, 4, 15}, {0, 3, 1}}) {
    const auto report = stores(all, first, second);
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(report.executions, static_cast<std::uint64_t>(interleavings));
    EXPECT_EQ(report.distinct, report.executions);
  }
}

TEST(ExplorerTest, ExhaustiveMeansEachValueOfEachLoad) {
  const auto count = [](std::memory_order order) {
    return explore(all, [=](Program& program) {
      auto& words = named_words(program);
      program.thread("first", [=, &words] {
        words.a.store(1, order);
        words.b.load(order);
      });
      program.thread("second", [=, &words] {
        words.b.store(1, order);
        words.a.load(order);
      });
    });
  };
  EXPECT_EQ(count(seq_cst).executions, 6U);
  EXPECT_EQ(count(relaxed).executions, 20U) << "2 schedules in which one load has a choice, 4 in which both have";
}

TEST(ExplorerTest, PreemptionsCanBeBounded) {
  auto options = all;
  options.preemption_bound = 0;
  EXPECT_EQ(stores(options, 3, 3).executions, 2U);
  options.preemption_bound = 1;
  EXPECT_EQ(stores(options, 3, 3).executions, 2U + 4U) << "each thread may be interrupted in two places";
}

TEST(ExplorerTest, StopsAtTheBound) {
  const auto report = stores({.search = Search::exhaustive, .executions = 5}, 3, 3);
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.executions, 5U);
}

TEST(ExplorerTest, SamplesFindAllOfASmallProgram) {
  const auto report = stores({.executions = 1'000}, 3, 3);
  EXPECT_EQ(report.executions, 1'000U);
  EXPECT_EQ(report.distinct, 20U);
}

/// Fails only if the reader runs between two particular stores and sees one of them late.
void rarely_wrong(Program& program) {
  auto& words = named_words(program);
  program.thread("writer", [&words] {
    for (std::uint32_t i = 1; i <= 4; ++i) {
      words.a.store(i, relaxed);
      words.b.store(i, relaxed);
    }
  });
  program.thread("reader", [&words] {
    const auto b = words.b.load(relaxed);
    const auto a = words.a.load(relaxed);
    require(b != 3 || a != 1, "b is 3 and a still 1");
  });
}

TEST(ExplorerTest, AFailureSaysWhatHappenedAndCanBeReplayed) {
  const auto report = explore({.seed = 7}, rarely_wrong);
  ASSERT_TRUE(report.failure);
  EXPECT_EQ(report.failure->message, "b is 3 and a still 1");
  EXPECT_THAT(report.failure->trace, HasSubstr("writer  store b 3 (relaxed)"));
  EXPECT_THAT(report.failure->trace, HasSubstr("reader  load a 1 (relaxed), old: the newest is "));
  std::ostringstream printed;
  printed << report;
  EXPECT_THAT(printed.str(), HasSubstr("seed 7"));

  const auto again = replay({}, report.failure->decisions, rarely_wrong);
  ASSERT_TRUE(again.failure);
  EXPECT_EQ(again.failure->message, report.failure->message);
  EXPECT_EQ(again.failure->trace, report.failure->trace);

  EXPECT_EQ(explore({.seed = 7}, rarely_wrong).failure->trace, report.failure->trace) << "the seed alone will do";
}

TEST(ExplorerTest, AProgramThatVariesIsFoundOut) {
  int runs = 0;
  const auto report = explore(all, [&](Program& program) {
    ++runs;
    auto& words = named_words(program);
    for (int i = 0; i < (runs == 2 ? 3 : 2); ++i) program.thread("storing", [&words] { words.a.store(1); });
  });
  EXPECT_THAT(failure(report), HasSubstr("did not do the same again"));
}

TEST(ExplorerTest, DeadlockOfSleepers) {
  const auto report = explore(all, [](Program& program) {
    auto& words = named_words(program);
    program.thread("first", [&words] {
      futex_wait(words.a, 0);
      futex_wake(words.b);
    });
    program.thread("second", [&words] {
      futex_wait(words.b, 0);
      futex_wake(words.a);
    });
  });
  EXPECT_EQ(failure(report), "deadlock: first sleeps on a, which is 0; second sleeps on b, which is 0");
}

TEST(ExplorerTest, WakesThoseOnTheSameWordOnly) {
  auto options = all;
  options.spurious_wakeups = 0;
  const auto report = explore(options, [](Program& program) {
    auto& words = named_words(program);
    program.thread("sleeping", [&words] {
      futex_wait(words.a, 0);
      require(words.a.load() == 1, "woken on another word's account");
    });
    program.thread("waking", [&words] {
      futex_wake(words.b);
      words.a.store(1);
      futex_wake(words.a);
    });
  });
  EXPECT_FALSE(report.failure) << report;
}

TEST(ExplorerTest, SetupHappensBeforeTheThreads) {
  const auto report = explore(all, [](Program& program) {
    auto& words = named_words(program);
    auto& plain = program.make<Plain<int>>();
    plain = 1;
    words.a.store(1, relaxed);
    program.thread("reading", [&] { require(plain == 1 && words.a.load(relaxed) == 1, "as set up"); });
  });
  EXPECT_FALSE(report.failure) << report;
}

TEST(ExplorerTest, DeadlockOfSpinners) {
  const auto report = explore(all, [](Program& program) {
    auto& words = named_words(program);
    program.thread("first", [&words] {
      while (words.a.load() == 0) pause();
      words.b.store(1);
    });
    program.thread("second", [&words] {
      while (words.b.load() == 0) pause();
      words.a.store(1);
    });
  });
  EXPECT_EQ(failure(report), "deadlock: first spins, sees a = 0; second spins, sees b = 0");
}

TEST(ExplorerTest, ALoopThatNobodyCanEndIsCutOff) {
  const auto report = explore({.executions = 1, .max_steps = 100}, [](Program& program) {
    auto& words = named_words(program);
    program.thread("spinning", [&words] {
      while (words.a.load() == 0) {
      }
    });
  });
  EXPECT_THAT(failure(report), HasSubstr("more than 100 steps"));
}

TEST(ExplorerTest, SpinnersSeeTheStoreInTheEnd) {
  const auto report = explore(all, [](Program& program) {
    auto& words = named_words(program);
    program.thread("waiting", [&words] {
      while (words.a.load(relaxed) == 0) pause();
    });
    program.thread("storing", [&words] { words.a.store(1, relaxed); });
  });
  EXPECT_FALSE(report.failure) << report;
  EXPECT_TRUE(report.complete);
}

/// A lock whose waiters store in every round, so that each always has something new for the others.
void lock_by_exchange(Program& program) {
  struct State {
    Atomic<bool> locked{false};
    Plain<int> count{0};
  };
  auto& state = program.make<State>();
  for (int i = 0; i < 3; ++i) {
    program.thread("T" + std::to_string(i + 1), [&state] {
      while (state.locked.exchange(true, acquire)) pause();
      state.count = state.count + 1;
      state.locked.store(false, release);
    });
  }
  program.after([&state] { require(state.count == 3, "each counted"); });
}

TEST(ExplorerTest, SpinnersThatStoreDoNotStarveTheOthers) {
  const auto every = explore(
      {.search = Search::exhaustive, .executions = 1'000'000, .max_steps = 200, .free_pauses = 0}, lock_by_exchange);
  EXPECT_FALSE(every.failure) << every;
  EXPECT_TRUE(every.complete) << every;
  const auto sampled = explore({.executions = 1'000, .max_steps = 500}, lock_by_exchange);
  EXPECT_FALSE(sampled.failure) << sampled;
}

/// Spins for two rounds, then sleeps; nothing ever wakes it.
void spins_then_sleeps(Program& program) {
  auto& words = named_words(program);
  program.thread("waiting", [&words] {
    for (int spins = 0; spins < 2; ++spins) {
      if (words.a.load() != 0) return;
      pause();
    }
    while (words.a.load() == 0) futex_wait(words.a, 0);
  });
  program.thread("storing", [&words] { words.a.store(1); });
}

TEST(ExplorerTest, SpinnersThatGiveUpAreRacedWhileTheySleep) {
  EXPECT_EQ(failure(explore(all, spins_then_sleeps)), "deadlock: waiting sleeps on a, which is 1");
}

/// Whether a thread that was held back in a wait loop can continue between the two stores of another.
bool goes_on_between_stores(const std::function<bool(Words&)>& arrived) {
  auto options = all;
  options.free_pauses = 0;
  bool seen = false;
  const auto report = explore(options, [&](Program& program) {
    auto& words = named_words(program);
    program.thread("waiting", [&] {
      bool waited = false;
      for (; !arrived(words); waited = true) pause();
      seen |= waited && words.b.load() == 0;
    });
    program.thread("storing", [&words] {
      words.a.store(1);
      words.b.store(1);
    });
  });
  EXPECT_TRUE(report.complete) << report;
  return seen;
}

TEST(ExplorerTest, SpinnersGoOnAsSoonAsThereIsNews) {
  EXPECT_TRUE(goes_on_between_stores([](Words& words) { return words.a.load() == 1; }));
  EXPECT_TRUE(goes_on_between_stores([](Words& words) { return words.a.exchange(0) == 1; }));
}

TEST(ExplorerTest, EachLoopHasItsFreeRounds) {
  bool gave_up_before_the_store = false;
  const auto report = explore(all, [&](Program& program) {
    auto& words = named_words(program);
    program.thread("waiting", [&] {
      std::uint32_t rounds = 0;
      for (; words.a.load() == 0; ++rounds) pause();
      for (int spins = 0; spins < 2 && words.b.load() == 0; ++spins) pause();
      gave_up_before_the_store |= rounds > all.free_pauses && words.b.load() == 0;
    });
    program.thread("storing", [&words] {
      words.a.store(1);
      words.b.store(1);
    });
  });
  EXPECT_TRUE(report.complete) << report;
  EXPECT_TRUE(gave_up_before_the_store);
}

TEST(ExplorerTest, SpinnersGiveUpWhenThereIsNobodyToWaitFor) {
  const auto report = explore({.executions = 10}, [](Program& program) {
    auto& words = named_words(program);
    program.thread("spinning", [&words] {
      for (int spins = 0; spins < 200 && words.a.load() == 0; ++spins) pause();
    });
  });
  EXPECT_FALSE(report.failure) << report;
}

TEST(ExplorerTest, SleepersWakeUpForNoReason) {
  int spurious = 0;
  const auto report = explore(all, [&](Program& program) {
    auto& words = named_words(program);
    program.thread("sleeping", [&] {
      futex_wait(words.a, 0);
      if (words.a.load() == 0) ++spurious;
    });
    program.thread("waking", [&words] {
      words.a.store(1);
      futex_wake(words.a);
    });
  });
  EXPECT_FALSE(report.failure) << report;
  EXPECT_GT(spurious, 0);
}

TEST(ExplorerTest, AThreadThatThrowsFails) {
  const auto report =
      explore(all, [](Program& program) { program.thread("throwing", [] { throw std::runtime_error("no more"); }); });
  EXPECT_EQ(failure(report), "throwing threw: no more");
}

TEST(ExplorerTest, GoesOnAfterAFailureWithThreadsInTheMiddle) {
  for (int i = 0; i < 3; ++i) {
    const auto report = explore(all, [](Program& program) {
      auto& words = named_words(program);
      program.thread("failing", [&words]() noexcept {
        words.a.store(1);
        require(false, "here");
      });
      program.thread("interrupted", [&words]() noexcept {
        const auto local = std::make_unique<std::vector<int>>(100);
        words.a.store(1);
        words.a.store(2);
      });
    });
    EXPECT_EQ(failure(report), "here");
    EXPECT_FALSE(stores(all, 1, 1).failure);
  }
}

TEST(ExplorerTest, AtomicsExistInsideAnExecutionOnly) {
  EXPECT_THROW(Atomic<int>{0}, std::logic_error);
}

}  // namespace
}  // namespace cohort::model::test
