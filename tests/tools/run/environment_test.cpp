// SPDX-License-Identifier: BSD-3-Clause
//
// What a rank finds when it starts: variables, store, CPUs, standard input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <string>

#include "tools/launched.h"

namespace {

using namespace cohort::test;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

int usable() {
  cpu_set_t mask;
  return ::sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

TEST(RunEnvironment, EachRankKnowsItsPlace) {
  const auto outcome = run_cohort(
      run_script(3,
                 "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
                 "$ROLE_WORLD_SIZE $ROLE_NAME $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS",
                 {"--role", "trainer", "--max-restarts=2"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out, "[rank 0] "), ElementsAre("0 3 0 3 0 1 0 3 trainer 0 2"));
  EXPECT_THAT(lines_of(outcome.out, "[rank 1] "), ElementsAre("1 3 1 3 0 1 1 3 trainer 0 2"));
  EXPECT_THAT(lines_of(outcome.out, "[rank 2] "), ElementsAre("2 3 2 3 0 1 2 3 trainer 0 2"));
}

TEST(RunEnvironment, PicksAFreePortAndARunIdOfItsOwn) {
  const auto script =
      "echo $MASTER_ADDR port:$MASTER_PORT id:$COHORT_RUN_ID:$TORCHELASTIC_RUN_ID "
      "$COHORT_STORE ${TORCHELASTIC_USE_AGENT_STORE-none}";
  const auto first = run_cohort({"run", "sh", "-c", script}, {.variables = {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}});
  const auto second = run_cohort({"run", "sh", "-c", script});
  EXPECT_THAT(first.out,
              testing::MatchesRegex("127.0.0.1 port:[0-9]+ id:[0-9a-f]+:[0-9a-f]+ unix:@cohort/run/[0-9a-f]+ none\n"));
  EXPECT_NE(first.out, second.out);
}

TEST(RunEnvironment, ANamedRunKeepsItsName) {
  const auto outcome = run_cohort({"run", "--standalone", "--rdzv_id=job7", "--master_port=4711", "sh", "-c",
                                   "echo $COHORT_RUN_ID $MASTER_PORT $COHORT_STORE"});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("job7 4711 unix:"), Not(HasSubstr("run/job7"))));
}

TEST(RunEnvironment, RanksMeetInTheLaunchersStore) {
  const auto outcome = run_cohort({"run", "-n", "4", "--rdzv-id", "meeting", STORE_EXCHANGE});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out, ""),
              ElementsAre("[rank 0] sum 6", "[rank 1] sum 6", "[rank 2] sum 6", "[rank 3] sum 6"));
}

TEST(RunEnvironment, SharesTheCpusForOpenMp) {
  const auto all = std::to_string(usable());
  EXPECT_EQ(run_cohort({"run", "sh", "-c", "echo $OMP_NUM_THREADS"}).out, all + "\n");
  const auto many = run_cohort(run_script(usable() * 2, "echo $OMP_NUM_THREADS"));
  EXPECT_THAT(lines_of(many.out, "["), Each(HasSubstr("] 1")));
  EXPECT_EQ(run_cohort({"run", "sh", "-c", "echo $OMP_NUM_THREADS"}, {.variables = {{"OMP_NUM_THREADS", "77"}}}).out,
            "77\n");
}

constexpr auto show_cpus = "grep Cpus_allowed_list /proc/self/status";

std::set<std::string> cpu_lists(const std::string& out) {
  std::set<std::string> lists;
  for (const auto& line : lines_of(out, "[rank ")) lists.insert(line.substr(line.find('\t') + 1));
  return lists;
}

TEST(RunEnvironment, BindsRanksToCpusOfTheirOwn) {
  if (usable() < 2) GTEST_SKIP() << "needs two CPUs";
  EXPECT_THAT(cpu_lists(run_cohort(run_script(2, show_cpus)).out), SizeIs(2));
  EXPECT_THAT(cpu_lists(run_cohort(run_script(2, show_cpus, {"--bind", "none"})).out), SizeIs(1));
}

TEST(RunEnvironment, DoesNotBindRanksThatOutnumberTheCpus) {
  EXPECT_THAT(cpu_lists(run_cohort(run_script(usable() + 1, show_cpus)).out), SizeIs(1));
}

TEST(RunEnvironment, StandardInputGoesToRankZero) {
  const auto outcome = run_cohort(run_script(2, "cat"), {.input = "first\nsecond\n"});
  EXPECT_EQ(outcome.out, "[rank 0] first\n[rank 0] second\n");
}

TEST(RunEnvironment, ATerminalsInputIsPassedOn) {
  Launched launched(run_script(2, "if [ $RANK = 0 ]; then echo ready; read x; echo got $x; fi"), {.in_terminal = true});
  launched.wait_for_output("ready");
  launched.type("hello\n");
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("got hello"));
}

TEST(RunEnvironment, RanksAreGroupsOfTheirOwnWithoutTheLaunchersDescriptors) {
  const auto outcome =
      run_cohort(run_script(2, "echo group $(ps -o pgid= -p $$) $$; ls /proc/self/fd | xargs echo open"));
  EXPECT_EQ(outcome.code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    const auto lines = lines_of(outcome.out, "[rank " + std::to_string(rank) + "] ");
    ASSERT_EQ(lines.size(), 2U) << outcome.out;
    const auto pids = lines[0].substr(lines[0].find_first_of("0123456789"));
    EXPECT_EQ(pids.substr(0, pids.find(' ')), pids.substr(pids.find(' ') + 1));
    EXPECT_EQ(lines[1], "open 0 1 2 3") << "3 is the folder itself";
  }
}

}  // namespace
