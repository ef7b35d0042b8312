// SPDX-License-Identifier: BSD-3-Clause
//
// --keep-going: the other ranks of a job whose rank was lost, replacements, and what the exit code says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <sstream>
#include <string>

#include "support/temporary.h"
#include "tools/launched.h"

namespace {

using namespace cohort::test;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// As in tools/cohort/common/exit_status.h.
constexpr int ranks_were_lost = 75;

/// What ranks wait for, in a shell script.
class Signpost {
 public:
  std::string path() const { return folder_ / "go"; }
  std::string awaited() const { return "while ! [ -e " + path() + " ]; do sleep 0.02; done; "; }
  void put_up() const { std::ofstream(path()).flush(); }

 private:
  TemporaryFolder folder_;
};

TEST(RunKeepGoing, TheOthersGoOnAndTheExitCodeTells) {
  const Signpost go;
  Launched launched(
      run_script(3, "[ $RANK = 1 ] && kill -KILL $$; " + go.awaited() + "echo rank $RANK is done", {"--keep-going"}),
      {.in_terminal = true});
  launched.wait_for_output("rank 1 (pid");
  go.put_up();
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, ranks_were_lost);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("rank 0 is done"), HasSubstr("rank 2 is done")));
  EXPECT_THAT(outcome.out, ContainsRegex("rank 1 \\(pid [0-9]+\\) on host [^ ]+ was killed by SIGKILL"));
  EXPECT_THAT(outcome.out, HasSubstr("the job has ended without all of its ranks: rank 1 was killed by SIGKILL"));
}

TEST(RunKeepGoing, IsSilentAboutAJobThatLosesNobody) {
  const auto outcome = run_cohort(run_script(2, "echo done", {"--keep-going"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(RunKeepGoing, AJobInWhichAllFailHasTheCodeOfTheFirst) {
  const Signpost go;
  Launched launched(run_script(2, "[ $RANK = 0 ] && exit 9; " + go.awaited() + "exit 4", {"--keep-going"}),
                    {.in_terminal = true});
  launched.wait_for_output("rank 0 (pid");
  go.put_up();
  EXPECT_EQ(launched.finish().code, 9);
}

TEST(RunKeepGoing, ALostRankIsReplacedAndItsReplacementIsTold) {
  const Signpost joined;
  const auto outcome =
      run_cohort(run_script(3,
                            "echo rank $RANK of $WORLD_SIZE local $LOCAL_RANK attempt $TORCHELASTIC_RESTART_COUNT is "
                            "process ${COHORT_REPLACEMENT:-0}; if [ $RANK = 1 ]; then [ ${COHORT_REPLACEMENT:-0} = 2 ] "
                            "|| exit 7; touch " +
                                joined.path() + "; fi; " + joined.awaited(),
                            {"--keep-going", "--max-restarts", "2"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const auto* const process : {"0", "1", "2"}) {
    EXPECT_THAT(outcome.out, HasSubstr(std::string("rank 1 of 3 local 1 attempt 0 is process ") + process));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("rank 0 of 3 local 0 attempt 0 is process 1")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("starting a replacement for rank 1 (replacement 1 of 2)"),
                                 HasSubstr("starting a replacement for rank 1 (replacement 2 of 2)")));
}

TEST(RunKeepGoing, WithoutAReplacementLeftTheRankIsLost) {
  const Signpost failed;
  const auto outcome = run_cohort(run_script(
      2, "[ $RANK = 1 ] && { [ $COHORT_REPLACEMENT ] && touch " + failed.path() + "; exit 7; }; " + failed.awaited(),
      {"--keep-going", "--max-restarts", "1"}));
  EXPECT_EQ(outcome.code, ranks_were_lost);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("(replacement 1 of 1)"), HasSubstr("rank 1 exited with code 7\n")));
}

TEST(RunKeepGoing, TheLogOfAReplacementIsItsOwn) {
  const TemporaryFolder folder;
  const Signpost replaced;
  const auto outcome =
      run_cohort(run_script(2,
                            "echo process ${COHORT_REPLACEMENT:-0}; [ $RANK = 1 ] && { [ $COHORT_REPLACEMENT ] || exit "
                            "7; touch " +
                                replaced.path() + "; }; " + replaced.awaited(),
                            {"--keep-going", "--max-restarts", "1", "--log-dir", folder / "logs", "--rdzv-id", "job"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto log_of = [&](const std::string& rank) {
    std::ostringstream text;
    text << std::ifstream(folder / ("logs/job/attempt_0/" + rank + "/stdout.log")).rdbuf();
    return text.str();
  };
  EXPECT_EQ(log_of("1"), "process 0\n");
  EXPECT_EQ(log_of("1_replacement_1"), "process 1\n");
}

TEST(RunKeepGoing, ARankLostBeforeAGroupIsBegunIsReplacedInTheMaking) {
  const Signpost replaced;
  const auto outcome =
      run_cohort(run_script(3,
                            "[ $RANK = 1 ] && { [ $COHORT_REPLACEMENT ] || kill -KILL $$; touch " + replaced.path() +
                                "; }; " + replaced.awaited() + "exec " + GROUP_MEMBER,
                            {"--keep-going", "--max-restarts", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const auto* const rank : {"0", "1", "2"}) {
    EXPECT_THAT(outcome.out, HasSubstr(std::string("[rank ") + rank + "] sum 3 in attempt 0")) << outcome.err;
  }
}

TEST(RunKeepGoing, AllStartAgainIfOneIsLostWhileTheyMakeTheirFirstGroup) {
  for (const std::string name : {"", "first"}) {
    const std::string script = std::string("[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec ") +
                               GROUP_MEMBER + " dies " + name + "; exec " + GROUP_MEMBER + " makes " + name;
    const auto outcome = run_cohort(run_script(3, script, {"--keep-going", "--max-restarts", "1"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (const auto* const rank : {"0", "1", "2"}) {
      EXPECT_THAT(outcome.out, HasSubstr(std::string("[rank ") + rank + "] sum 3 in attempt 1")) << outcome.err;
    }
    EXPECT_THAT(outcome.err, HasSubstr("restarting all ranks (restart 1 of 1)"));
  }
}

TEST(RunKeepGoing, StopsWhenTheUserWantsIt) {
  Launched launched(run_script(3, "[ $RANK = 1 ] && exit 3; echo ready; exec sleep 60", {"--keep-going"}),
                    {.in_terminal = true});
  launched.wait_for_output("ready", 2);
  launched.wait_for_output("rank 1 (pid");
  launched.signal(SIGTERM);
  EXPECT_EQ(launched.finish().code, 128 + SIGTERM);
}

/// Two launchers on this host stand for two hosts.
class RunKeepGoingOnNodes : public testing::Test {
 protected:
  Strings node(int rank, int ranks, const std::string& script) const {
    return run_script(ranks, script,
                      {"--keep-going", "--nnodes", "2", "--node-rank", std::to_string(rank), "--rdzv-endpoint",
                       "127.0.0.1:" + port_});
  }

 private:
  std::string port_ = std::to_string(free_port());
};

TEST_F(RunKeepGoingOnNodes, ALostRankIsReportedByAllHosts) {
  const Signpost go;
  const auto script = "[ $RANK = 1 ] && exit 6; " + go.awaited() + "echo done";
  Launched first(node(0, 1, script));
  Launched second(node(1, 2, script), {.variables = {{"NO_COLOR", "1"}}, .in_terminal = true});
  second.wait_for_output("rank 1 (pid");
  go.put_up();
  const auto on_first = first.finish();
  const auto on_second = second.finish();
  EXPECT_EQ(on_first.code, ranks_were_lost) << on_first.err;
  EXPECT_EQ(on_second.code, ranks_were_lost) << on_second.out;
  EXPECT_THAT(on_first.out, HasSubstr("[rank 0] done"));
  EXPECT_THAT(on_second.out, HasSubstr("[rank 2] done"));
  EXPECT_THAT(on_first.err, HasSubstr("rank 1 exited with code 6"));
}

TEST_F(RunKeepGoingOnNodes, AHostThatIsLostDoesNotEndTheOthers) {
  const Signpost go;
  const auto script = "echo ready; " + go.awaited() + "echo done";
  Launched first(node(0, 1, script), {.variables = {{"NO_COLOR", "1"}}, .in_terminal = true});
  Launched second(node(1, 1, script));
  first.wait_for_output("ready");
  second.wait_for_output("ready");
  second.signal(SIGKILL);
  first.wait_for_output("is gone; the others go on");
  go.put_up();
  const auto outcome = first.finish();
  EXPECT_EQ(outcome.code, ranks_were_lost) << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[rank 0] done"), HasSubstr("the launcher of node 1")));
}

}  // namespace
