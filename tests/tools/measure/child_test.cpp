// SPDX-License-Identifier: BSD-3-Clause
#include "measure/child.h"

#include <cohort/error.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "measure/rank_processes.h"
#include "support/expect_error.h"

namespace {

using namespace cohort::measure;

TEST(BenchChild, ExchangesValuesWithItsParentAndEndsWithTheChannel) {
  Child child([](Channel& parent) {
    parent.send(parent.receive<int>() + 1);
    parent.wait_for_end();
  });
  child.channel().send(41);
  EXPECT_EQ(child.channel().receive<int>(), 42);
  EXPECT_TRUE(child.end().is_success());
}

TEST(BenchChild, ThatFailsIsAnErrorForWhoeverTalksToIt) {
  Child child([](Channel&) { throw cohort::Error("this child fails for the test"); });
  EXPECT_ERROR(cohort::Error, child.channel().receive<int>(), "ended early");
  EXPECT_EQ(child.end().code, 1);
}

TEST(BenchChild, ThatIsKilledTellsBySignal) {
  Child child([](Channel&) { static_cast<void>(::raise(SIGKILL)); });
  EXPECT_ERROR(cohort::Error, child.channel().receive<int>(), "ended early");
  EXPECT_EQ(child.end().signal, SIGKILL);
}

TEST(BenchRankProcesses, AllAnswerTheSameQuestion) {
  RankProcesses<int> ranks(3, [](int rank) {
    return [rank](int milliseconds) {
      const auto begin = Clock::time_point(std::chrono::milliseconds(rank));
      return Interval{begin, begin + std::chrono::milliseconds(milliseconds * (rank + 1))};
    };
  });
  const auto answers = ranks.ask(10);
  EXPECT_DOUBLE_EQ(slowest(answers), 0.030);
  EXPECT_DOUBLE_EQ(span(answers), 0.032);
}

}  // namespace
