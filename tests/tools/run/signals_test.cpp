// SPDX-License-Identifier: BSD-3-Clause
//
// Signals to the launcher, and its own sudden death.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>

#include "tools/launched.h"

namespace {

using namespace cohort::test;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr auto wait_for_ever = "while :; do sleep 0.02; done";
/// The same without starting a process again and again: a shell that is stopped between vfork and exec of its child
/// waits for that child and does not look stopped.
constexpr auto wait_for_ever_in_one_process = "sleep 1000 & while :; do wait; done";

TEST(RunSignals, SigtermReachesAllRanks) {
  Launched launched(run_script(3, std::string("trap 'echo saved; exit 0' TERM; echo ready; ") + wait_for_ever));
  launched.wait_for_output("ready", 3);
  launched.signal(SIGTERM);
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out, ""), testing::IsSupersetOf({"[rank 0] saved", "[rank 1] saved", "[rank 2] saved"}));
}

TEST(RunSignals, DeathBySigtermIsReturnedAsSuch) {
  Launched launched(run_script(2, "echo ready; exec sleep 60", {"--max-restarts", "5"}));
  launched.wait_for_output("ready", 2);
  launched.signal(SIGTERM);
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("cohort run: stopped by SIGTERM"), Not(HasSubstr("restarting"))));
}

TEST(RunSignals, UserSignalsArePassedOn) {
  Launched launched(run_script(2,
                               "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo ready; while :; do sleep "
                               "0.02; done"));
  launched.wait_for_output("ready", 2);
  launched.signal(SIGUSR1);
  launched.wait_for_output("one", 2);
  launched.signal(SIGUSR2);
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[rank 0] two"), HasSubstr("[rank 1] two")));
}

TEST(RunSignals, TheSecondInterruptKills) {
  Launched launched(run_script(2, std::string("trap 'echo ignored' INT; echo ready; ") + wait_for_ever));
  launched.wait_for_output("ready", 2);
  launched.signal(SIGINT);
  launched.wait_for_output("ignored", 2);
  const auto start = std::chrono::steady_clock::now();
  launched.signal(SIGINT);
  const auto outcome = launched.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);  // the first one alone gives ten
  EXPECT_EQ(outcome.code, 128 + SIGINT);
  EXPECT_THAT(outcome.err, HasSubstr("stopped by SIGINT"));
}

TEST(RunSignals, CtrlCInATerminal) {
  Launched launched(run_script(2, "echo ready; exec sleep 60"), {.in_terminal = true});
  launched.wait_for_output("ready", 2);
  launched.type("\x03");
  EXPECT_EQ(launched.finish().code, 128 + SIGINT);
}

TEST(RunSignals, StopAndContinueReachTheRanksAndTheLauncher) {
  Launched launched(
      run_script(2, std::string("trap 'echo continued' CONT; echo pid $$; ") + wait_for_ever_in_one_process),
      {.in_own_group = true});
  launched.wait_for_output("\n", 2);
  const auto pids = numbers_after(launched.out(), "pid ");
  ASSERT_EQ(pids.size(), 2U);
  for (int i = 1; i <= 2; ++i) {
    launched.signal(SIGTSTP);
    EXPECT_TRUE(is_stopped_soon(launched.pid()));
    for (const auto pid : pids) EXPECT_TRUE(is_stopped_soon(pid)) << pid;
    launched.signal(SIGCONT);
    launched.wait_for_output("continued", 2 * static_cast<std::size_t>(i));
    for (const auto pid : pids) EXPECT_NE(process_state(pid), 'T') << pid;
  }
  launched.signal(SIGTERM);
  EXPECT_EQ(launched.finish().code, 128 + SIGTERM);
}

TEST(RunSignals, CtrlZWithoutAShellToContinueTheJobDoesNotStopIt) {
  // The launcher leads the terminal's session: the system ignores stop signals there.
  Launched launched(run_script(2, std::string("trap 'echo continued' CONT; echo ready; ") + wait_for_ever),
                    {.in_terminal = true});
  launched.wait_for_output("ready", 2);
  launched.type("\x1a");
  launched.wait_for_output("continued", 2);
  launched.type("\x03");
  EXPECT_EQ(launched.finish().code, 128 + SIGINT);
}

TEST(RunSignals, WhatNohupSwitchedOffStaysOff) {
  Launched launched(
      {"run", "sh", "-c", "trap '' HUP; exec " COHORT_TOOL " run sh -c 'kill -HUP $$; kill -HUP $PPID; echo alive'"});
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("alive"));
}

TEST(RunSignals, ABlockedReaderDoesNotKeepTheLauncherFromStopping) {
  Launched launched(run_script(2, "echo pid $$; exec yes"));
  launched.wait_for_output("pid ", 2);
  const auto pids = numbers_after(launched.out(), "pid ");
  // Nobody reads now: the pipe fills, the ranks block.
  launched.signal(SIGTERM);
  for (const auto pid : pids) EXPECT_TRUE(is_gone_soon(pid)) << pid;
  EXPECT_EQ(launched.finish().code, 128 + SIGTERM);
}

TEST(RunSignals, KillingTheLauncherLeavesNoProcess) {
  Launched launched(run_script(2, "echo pid $$; exec sleep 63"));
  launched.wait_for_output("\n", 2);
  const auto pids = numbers_after(launched.out(), "pid ");
  ASSERT_EQ(pids.size(), 2U);
  launched.signal(SIGKILL);
  EXPECT_EQ(launched.finish().code, 128 + SIGKILL);
  for (const auto pid : pids) EXPECT_TRUE(is_gone_soon(pid)) << pid;
}

TEST(RunSignals, KillingTheLauncherLeavesNoProcessThatHasLeftItsGroup) {
  Launched launched(
      run_script(2, "setsid sleep 64 & echo pid $!; setsid sh -c 'setsid sleep 65 & wait' & exec sleep 66"));
  launched.wait_for_output("\n", 2);
  const auto pids = numbers_after(launched.out(), "pid ");
  ASSERT_EQ(pids.size(), 2U);
  launched.signal(SIGKILL);
  EXPECT_EQ(launched.finish().code, 128 + SIGKILL);
  for (const auto pid : pids) EXPECT_TRUE(is_gone_soon(pid)) << pid;
}

TEST(RunSignals, KillingTheLauncherLeavesNoProcessBehindAWrapper) {
  // The rank is the shell; the program is its child and knows nothing of the launcher.
  Launched launched(run_script(2, "sh -c 'echo pid $$; exec sleep 64' & wait"));
  launched.wait_for_output("\n", 2);
  const auto pids = numbers_after(launched.out(), "pid ");
  ASSERT_EQ(pids.size(), 2U);
  launched.signal(SIGKILL);
  EXPECT_EQ(launched.finish().code, 128 + SIGKILL);
  for (const auto pid : pids) EXPECT_TRUE(is_gone_soon(pid)) << pid;
}

}  // namespace
