// SPDX-License-Identifier: BSD-3-Clause
//
// When a rank fails: who is named, what is returned, how soon the others end, and starting again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tools/launched.h"

namespace {

using namespace cohort::test;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// Sanitized and loaded machines are slow; an ordinary build must keep the promise of one second.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto soon = 5s;
#else
constexpr auto soon = 1s;
#endif

TEST(RunFailure, NamesTheFirstFailingRankWithItsLastLines) {
  const auto outcome = run_cohort(run_script(3,
                                             "if [ $RANK = 1 ]; then i=0; while [ $i -lt 30 ]; do echo line $i; "
                                             "i=$((i+1)); done; printf 'the end' >&2; exit 3; fi; "
                                             "exec sleep 60"));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, ContainsRegex("cohort run: rank 1 \\(pid [0-9]+\\) on host [^ ]+ exited with code 3\n"));
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("    line 29\n"), HasSubstr("    the end\n"), Not(HasSubstr("    line 9\n"))));
  EXPECT_THAT(outcome.err, AllOf(Not(HasSubstr("rank 0 (")), Not(HasSubstr("rank 2 ("))));
}

TEST(RunFailure, NamesTheSignal) {
  const auto outcome = run_cohort(run_script(2, "[ $RANK = 0 ] && kill -SEGV $$; exec sleep 60"));
  EXPECT_EQ(outcome.code, 128 + SIGSEGV);
  EXPECT_THAT(outcome.err, ContainsRegex("rank 0 \\(pid [0-9]+\\) on host [^ ]+ was killed by SIGSEGV"));
}

TEST(RunFailure, TheRestEndsWithinASecond) {
  // The others do not even listen to SIGTERM, nor do their children.
  Launched launched(run_script(4,
                               "trap '' TERM; sleep 61 & echo pid $!; echo pid $$; read x; if [ $RANK = 0 ]; then "
                               "exit 7; fi; wait; sleep 62"),
                    {.in_terminal = true});
  launched.wait_for_output("pid ", 8);
  const auto start = std::chrono::steady_clock::now();
  launched.type("go\n");
  const auto outcome = launched.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - start, soon);
  EXPECT_EQ(outcome.code, 7);
  const auto pids = numbers_after(outcome.out, "pid ");
  EXPECT_GE(pids.size(), 8U);
  for (const auto pid : pids) EXPECT_TRUE(is_gone_soon(pid)) << pid;
}

TEST(RunFailure, TheGracePeriodIsForCleaningUp) {
  Launched launched(
      run_script(2,
                 "trap 'sleep 0.6; echo cleaned; exit 0' TERM; echo ready; if [ $RANK = 0 ]; then read x; "
                 "exit 5; fi; while :; do sleep 0.02; done",
                 {"--grace-period", "20"}),
      {.in_terminal = true});
  launched.wait_for_output("ready", 2);
  launched.type("go\n");
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.out, HasSubstr("cleaned"));
}

TEST(RunFailure, RestartsAllRanksUntilTheySucceed) {
  const auto outcome = run_cohort(
      run_script(2, "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ]",
                 {"--max-restarts", "3"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(lines_of(outcome.out, "[rank 1] "), testing::ElementsAre("attempt 0", "attempt 1"));
  EXPECT_THAT(outcome.err, HasSubstr("cohort run: restarting all ranks (restart 1 of 3)\n"));
}

TEST(RunFailure, GivesUpAfterTheLastRestart) {
  const auto outcome = run_cohort(run_script(2, "exit 9", {"--max_restarts=2"}));
  EXPECT_EQ(outcome.code, 9);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("restart 2 of 2"), HasSubstr("cohort run: giving up after 2 restarts\n")));
}

TEST(RunFailure, TheStoreOutlivesARanksDeath) {
  const auto outcome = run_cohort(run_script(
      3, std::string("[ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ] && kill -KILL $$; exec ") + STORE_EXCHANGE,
      {"--max-restarts", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out, "[rank 1] "), testing::ElementsAre("sum 3"));
}

TEST(RunFailure, AMissingProgramIsSaidOnce) {
  const auto missing = run_cohort({"run", "-n", "4", "no-such-program"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_EQ(missing.err, "cohort run: program \"no-such-program\" not found in PATH\n");
  EXPECT_EQ(run_cohort({"run", "./no-such-program"}).code, 127);

  const auto data = run_cohort({"run", "/etc/passwd"});
  EXPECT_EQ(data.code, 126);
  EXPECT_THAT(data.err, HasSubstr("cannot execute /etc/passwd: Permission denied"));
  EXPECT_EQ(run_cohort({"run", "/"}).code, 126);
}

}  // namespace
