// SPDX-License-Identifier: BSD-3-Clause
//
// Several hosts, played by several launchers on this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <string>

#include "support/certificates.h"
#include "support/temporary.h"
#include "tools/launched.h"

namespace {

using namespace cohort::test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class RunNodes : public testing::Test {
 protected:
  const std::string& port() const { return port_; }

  Strings node(int rank, int ranks, const std::string& script, Strings flags = {}) const {
    flags.insert(flags.begin(), {"--nnodes", "2", "--node-rank", std::to_string(rank), "--rdzv-endpoint", endpoint_});
    return run_script(ranks, script, std::move(flags));
  }

 private:
  std::string port_ = std::to_string(free_port());
  std::string endpoint_ = "127.0.0.1:" + port_;
};

TEST_F(RunNodes, RanksAreNumberedAcrossTheHosts) {
  const auto script =
      "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK of $GROUP_WORLD_SIZE";
  Launched second(node(1, 2, script));  // may come first
  Launched first(node(0, 1, script));
  const auto on_first = first.finish();
  const auto on_second = second.finish();
  EXPECT_EQ(on_first.code, 0) << on_first.err;
  EXPECT_EQ(on_second.code, 0) << on_second.err;
  EXPECT_EQ(on_first.out, "[rank 0] 0 of 3, 0 of 1, host 0 of 2\n");
  EXPECT_THAT(lines_of(on_second.out, ""),
              ElementsAre("[rank 1] 1 of 3, 0 of 2, host 1 of 2", "[rank 2] 2 of 3, 1 of 2, host 1 of 2"));
}

TEST_F(RunNodes, AllRanksGetTheSameAddressesAndMasterPortIsNotTheStores) {
  const auto script = "echo $MASTER_ADDR:$MASTER_PORT $COHORT_STORE id $COHORT_RUN_ID";
  Launched first(node(0, 1, script, {"--rdzv-id", "job"}));
  Launched second(node(1, 1, script, {"--rdzv-id", "job"}));
  const auto on_first = lines_of(first.finish().out, "[rank 0] ");
  const auto on_second = lines_of(second.finish().out, "[rank 1] ");
  ASSERT_EQ(on_first.size(), 1U);
  EXPECT_EQ(on_first, on_second);
  EXPECT_THAT(on_first[0], testing::MatchesRegex("127.0.0.1:[0-9]+ tcp://127.0.0.1:[0-9]+ id job"));
  const auto master = on_first[0].substr(0, on_first[0].find(' '));
  EXPECT_THAT(on_first[0], Not(HasSubstr("tcp://" + master)));
}

TEST_F(RunNodes, RanksMeetInTheStoreOfTheFirstWithTheUsersSecret) {
  const TemporaryFolder folder;
  const auto secret = folder / "job.secret";
  ASSERT_EQ(run_cohort({"secret", secret}).code, 0);
  const LaunchOptions options{.variables = {{"COHORT_SECRET_FILE", secret}}};
  Launched first(node(0, 1, std::string("exec ") + STORE_EXCHANGE), options);
  Launched second(node(1, 2, std::string("exec ") + STORE_EXCHANGE), options);
  const auto on_second = second.finish();
  EXPECT_EQ(first.finish().out, "[rank 0] sum 3\n");
  EXPECT_THAT(lines_of(on_second.out, ""), ElementsAre("[rank 1] sum 3", "[rank 2] sum 3")) << on_second.err;
}

TEST_F(RunNodes, AHostWithAnotherSecretIsTurnedAway) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_cohort({"secret", folder / "a"}).code, 0);
  ASSERT_EQ(run_cohort({"secret", folder / "b"}).code, 0);
  Launched first(node(0, 1, "true"), {.variables = {{"COHORT_SECRET_FILE", folder / "a"}}});
  const auto stranger = run_cohort(node(1, 1, "true"), {.variables = {{"COHORT_SECRET_FILE", folder / "b"}}});
  EXPECT_EQ(stranger.code, 1);
  EXPECT_THAT(stranger.err, HasSubstr("COHORT_SECRET_FILE"));
  first.signal(SIGTERM);
  const auto on_first = first.finish();
  EXPECT_EQ(on_first.code, 128 + SIGTERM);
  EXPECT_THAT(on_first.err, HasSubstr("refused a process at 127.0.0.1:")) << "the other side says so as well";
  EXPECT_THAT(on_first.err, HasSubstr("that does not have the job's secret"));
}

TEST_F(RunNodes, WithoutASecretAWarningSaysWhoCanJoin) {
  const auto warning = HasSubstr("asks for no secret: every user of this host can join the job");
  const auto run_both = [&](const LaunchOptions& options) {
    Launched first(node(0, 1, "true"), options);
    EXPECT_EQ(run_cohort(node(1, 1, "true"), options).code, 0);
    return first.finish().err;
  };
  EXPECT_THAT(run_both({}), warning);
  EXPECT_THAT(run_both({.variables = {{"COHORT_INSECURE", "1"}}}), Not(warning));
  const TemporaryFolder folder;
  ASSERT_EQ(run_cohort({"secret", folder / "s"}).code, 0);
  EXPECT_THAT(run_both({.variables = {{"COHORT_SECRET_FILE", folder / "s"}}}), Not(warning));
}

TEST_F(RunNodes, TlsIsForLaunchersAndRanksAlike) {
  const TemporaryFolder folder;
  const auto authority = make_identity("authority", "", nullptr);
  write_pem(authority, folder / "ca.pem", folder / "ca.key");
  write_pem(make_identity("host", "IP:127.0.0.1", &authority), folder / "cert.pem", folder / "key.pem");
  const LaunchOptions options{.variables = {{"COHORT_TLS_CA", folder / "ca.pem"},
                                            {"COHORT_TLS_CERT", folder / "cert.pem"},
                                            {"COHORT_TLS_KEY", folder / "key.pem"}}};
  Launched first(node(0, 1, "echo $COHORT_TLS_CA"), options);
  const auto plain = run_cohort(node(1, 1, "true", {"--rdzv-conf", "join_timeout=1"}));
  EXPECT_EQ(plain.code, 1);
  const auto second = run_cohort(node(1, 1, "true"), options);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.finish().out, "[rank 0] " + (folder / "ca.pem") + "\n");
}

TEST_F(RunNodes, APodsVariablesAreEnough) {
  const auto pod = [&](const std::string& rank) {
    return LaunchOptions{.variables = {{"KUBERNETES_PORT", "tcp://10.0.0.1:443"},
                                       {"RANK", rank},
                                       {"WORLD_SIZE", "2"},
                                       {"MASTER_ADDR", "127.0.0.1"},
                                       {"MASTER_PORT", port()},
                                       {"PET_NPROC_PER_NODE", "2"}}};
  };
  const Strings show{"run", "sh", "-c", "echo $RANK of $WORLD_SIZE, $LOCAL_RANK"};
  Launched first(show, pod("0"));
  const auto second = run_cohort(show, pod("1"));
  EXPECT_THAT(lines_of(second.out, ""), ElementsAre("[rank 2] 2 of 4, 0", "[rank 3] 3 of 4, 1")) << second.err;
  EXPECT_THAT(lines_of(first.finish().out, ""), ElementsAre("[rank 0] 0 of 4, 0", "[rank 1] 1 of 4, 1"));
}

TEST_F(RunNodes, BeyondThisHostASecretIsNeeded) {
  const auto outcome = run_cohort(
      {"run", "--nnodes=2", "--node-rank=0", "--rdzv-endpoint=0.0.0.0:" + std::to_string(free_port()), "true"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, testing::AllOf(HasSubstr("COHORT_SECRET_FILE"), HasSubstr("COHORT_INSECURE")));
}

TEST_F(RunNodes, AFailureOnOneEndsTheOther) {
  Launched first(node(0, 2, "echo ready; exec sleep 60"));
  Launched second(node(1, 1, "echo last words; exit 6"));
  const auto on_second = second.finish();
  const auto on_first = first.finish();
  EXPECT_EQ(on_first.code, 6);
  EXPECT_EQ(on_second.code, 6);
  EXPECT_THAT(on_first.err, HasSubstr("cohort run: rank 2 (pid"));
  EXPECT_THAT(on_first.err, HasSubstr("exited with code 6"));
  EXPECT_THAT(on_second.err, HasSubstr("    last words\n"));
}

TEST_F(RunNodes, AllHostsRestartTogether) {
  const auto script =
      "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $RANK = 1 ] "
      "&& exit 6; exec sleep 60; }";
  Launched first(node(0, 1, script, {"--max-restarts", "2"}));
  Launched second(node(1, 1, script, {"--max-restarts", "2"}));
  const auto on_first = first.finish();
  const auto on_second = second.finish();
  EXPECT_EQ(on_first.code, 0) << on_first.err;
  EXPECT_EQ(on_second.code, 0) << on_second.err;
  EXPECT_THAT(lines_of(on_second.out, "[rank 1] "), ElementsAre("attempt 0", "attempt 1"));
  EXPECT_THAT(on_first.err, HasSubstr("restarting all ranks (restart 1 of 2)"));
}

TEST_F(RunNodes, TheDeathOfALauncherIsNoticed) {
  for (const int victim : {0, 1}) {
    Launched first(node(0, 1, "echo ready $$; exec sleep 60", {"--max-restarts", "2"}));
    Launched second(node(1, 1, "echo ready $$; exec sleep 60", {"--max-restarts", "2"}));
    first.wait_for_output("ready");
    second.wait_for_output("ready");
    (victim == 0 ? first : second).signal(SIGKILL);
    const auto survivor = (victim == 0 ? second : first).finish();
    EXPECT_EQ(survivor.code, 1);
    EXPECT_THAT(survivor.err, HasSubstr("the launcher of node " + std::to_string(victim)));
    EXPECT_THAT(survivor.err, HasSubstr("is gone"));
  }
}

TEST_F(RunNodes, ASignalToOneStopsAll) {
  Launched first(node(0, 1, "echo ready; exec sleep 60"));
  Launched second(node(1, 1, "echo ready; exec sleep 60", {"--max-restarts", "0"}));
  first.wait_for_output("ready");
  second.wait_for_output("ready");
  second.signal(SIGTERM);
  EXPECT_EQ(second.finish().code, 128 + SIGTERM);
  const auto on_first = first.finish();
  EXPECT_EQ(on_first.code, 128 + SIGTERM);
  EXPECT_THAT(on_first.err, HasSubstr("stopped by SIGTERM"));
}

TEST_F(RunNodes, WhoIsMissingIsSaid) {
  const auto outcome = run_cohort(node(0, 1, "true", {"--rdzv-conf", "join_timeout=1"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("not all hosts arrived within 1 s; missing: node 1"));
  const auto alone = run_cohort(node(1, 1, "true", {"--rdzv-conf", "join_timeout=1"}));
  EXPECT_EQ(alone.code, 1);
  EXPECT_THAT(alone.err, HasSubstr("no launcher of node 0"));
}

TEST_F(RunNodes, TwoHostsCannotBeTheSame) {
  Launched first(node(0, 1, "true"));
  Launched second(node(1, 1, "echo ready; exec sleep 60"));
  second.wait_for_output("ready");
  const auto third = run_cohort(node(1, 1, "true"));
  EXPECT_EQ(third.code, 1);
  EXPECT_THAT(third.err, HasSubstr("--node-rank 1 is taken by host"));
  second.signal(SIGTERM);
  EXPECT_EQ(second.finish().code, 128 + SIGTERM);
}

TEST_F(RunNodes, HostsMustBeToldTheSame) {
  Launched first(node(0, 1, "echo ready; exec sleep 60"));
  Launched second(node(1, 1, "echo ready; exec sleep 60"));
  first.wait_for_output("ready");
  const auto other = run_cohort(node(1, 1, "true", {"--max-restarts", "3"}));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("the hosts disagree: here --nnodes 2 --max-restarts 3, elsewhere --nnodes 2 "));
}

}  // namespace
