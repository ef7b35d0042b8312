// SPDX-License-Identifier: BSD-3-Clause
#include "run/launch_plan.h"

#include <cohort/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/expect_error.h"

namespace {

using namespace cohort;
using namespace cohort::tool;
using testing::ElementsAre;

using Variables = std::map<std::string, std::string, std::less<>>;

LaunchPlan plan(std::vector<std::string> arguments, const Variables& variables = {}) {
  const auto env = Env::from(variables);
  arguments.emplace_back("program");
  return make_plan(parse_run_flags(arguments, env).flags, env);
}

Variables pod() {
  return {{"KUBERNETES_PORT", "tcp://10.0.0.1:443"},
          {"RANK", "2"},
          {"WORLD_SIZE", "4"},
          {"MASTER_ADDR", "job-master-0"},
          {"MASTER_PORT", "23456"}};
}

TEST(LaunchPlan, OneHostByDefault) {
  const auto made = plan({"-n", "3"});
  EXPECT_TRUE(made.is_one_host());
  EXPECT_EQ(made.local_size, 3);
  EXPECT_EQ(made.master_addr, "127.0.0.1");
}

TEST(LaunchPlan, RankAndWorldSizeAreNotOursOutsideAPod) {
  const auto made = plan({}, {{"RANK", "2"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(made.nodes, 1);
  EXPECT_EQ(made.node_rank, 0);
}

TEST(LaunchPlan, InAPodTheyCountPods) {
  const auto made = plan({"--nproc-per-node", "2"}, pod());
  EXPECT_EQ(made.nodes, 4);
  EXPECT_EQ(made.node_rank, 2);
  EXPECT_EQ(made.local_size, 2);
  EXPECT_EQ(made.endpoint, Endpoint::tcp("job-master-0", 23456));
}

TEST(LaunchPlan, AProcessOfALauncherInAPodIsNotAPod) {
  auto variables = pod();
  variables["LOCAL_RANK"] = "0";
  EXPECT_EQ(plan({}, variables).nodes, 1);
}

TEST(LaunchPlan, FlagsBeatThePod) {
  EXPECT_EQ(plan({"--standalone"}, pod()).nodes, 1);
  const auto made = plan({"--nnodes", "8", "--node-rank", "7", "--rdzv-endpoint", "other"}, pod());
  EXPECT_EQ(made.nodes, 8);
  EXPECT_EQ(made.node_rank, 7);
  EXPECT_EQ(made.endpoint, Endpoint::tcp("other", 29500));
}

TEST(LaunchPlan, TorchrunsVariablesAreDefaults) {
  const Variables variables{{"PET_NNODES", "2"},           {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", "3"},
                            {"PET_RDZV_ENDPOINT", "h:99"}, {"PET_RDZV_ID", "job"}, {"PET_MAX_RESTARTS", "4"}};
  const auto made = plan({}, variables);
  EXPECT_EQ(made.nodes, 2);
  EXPECT_EQ(made.node_rank, 1);
  EXPECT_EQ(made.local_size, 3);
  EXPECT_EQ(made.endpoint, Endpoint::tcp("h", 99));
  EXPECT_EQ(made.job_name, "job");
  EXPECT_EQ(made.max_restarts, 4);
  EXPECT_EQ(plan({"-n", "5"}, variables).local_size, 5);
}

TEST(LaunchPlan, SwitchesFromVariables) {
  EXPECT_EQ(plan({}, {{"PET_STANDALONE", "1"}, {"PET_NNODES", "2"}}).nodes, 1);
  EXPECT_EQ(plan({"--node-rank=0", "--master-addr=h"}, {{"PET_STANDALONE", "0"}, {"PET_NNODES", "2"}}).nodes, 2);
}

TEST(LaunchPlan, EndpointsInAllForms) {
  const auto of = [](const std::string& text) {
    return plan({"--nnodes=2", "--node-rank=1", "--rdzv-endpoint", text}).endpoint;
  };
  EXPECT_EQ(of("host"), Endpoint::tcp("host", 29500));
  EXPECT_EQ(of("host:1234"), Endpoint::tcp("host", 1234));
  EXPECT_EQ(of("[::1]:1234"), Endpoint::tcp("::1", 1234));
  EXPECT_EQ(of("[::1]"), Endpoint::tcp("::1", 29500));
  EXPECT_EQ(of("fe80::1"), Endpoint::tcp("fe80::1", 29500));
  EXPECT_EQ(plan({"--nnodes=2", "--node-rank=1", "--master-addr=host", "--master-port=77"}).endpoint,
            Endpoint::tcp("host", 77));
  EXPECT_EQ(plan({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=host", "--local-addr=10.0.0.1"}).listen_on,
            Endpoint::tcp("10.0.0.1", 29500));
}

TEST(LaunchPlan, WhatIsMissingOrWrongIsNamed) {
  const auto says = [](std::vector<std::string> arguments, const std::string& text) {
    EXPECT_THAT(test::message_of<ValueError>([&] { plan(arguments); }), testing::HasSubstr(text));
  };
  says({"--nnodes=2"}, "also needs --node-rank");
  says({"--nnodes=2", "--node-rank=2"}, "node rank 2 is not one of 0 to 1");
  says({"--nnodes=2", "--node-rank=1"}, "--rdzv-endpoint HOST[:PORT]");
  says({"--nnodes=1:4"}, "the number of hosts cannot change");
  says({"--nnodes=x"}, "--nnodes is \"x\"");
  says({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=h:0"}, "a port from 1 to 65535");
  says({"--rdzv-conf", "join_timeout=soon"}, "join_timeout in --rdzv-conf");
  says({"-n2", "--local-ranks-filter", "0,2"}, "\"2\" is not a local rank (0 to 1)");
  says({"-n2", "--tee", "5"}, "\"5\" is not 0, 1, 2 or 3");
  says({"-n2", "--tee", "2:1"}, "\"2:1\" is not LOCAL_RANK:VALUE");
}

TEST(LaunchPlan, GpusAreCountedAsTheyAreVisible) {
  EXPECT_EQ(plan({"-n", "gpu"}, {{"CUDA_VISIBLE_DEVICES", "0,3,5"}}).local_size, 3);
  EXPECT_EQ(plan({"-n", "auto"}, {{"CUDA_VISIBLE_DEVICES", "1"}}).local_size, 1);
  EXPECT_THROW(plan({"-n", "gpu"}, {{"CUDA_VISIBLE_DEVICES", "-1"}}), ValueError);
  EXPECT_GE(plan({"-n", "auto"}, {{"CUDA_VISIBLE_DEVICES", "-1"}}).local_size, 1);
}

TEST(LaunchPlan, StreamsPerRank) {
  EXPECT_THAT(parse_streams("", 2, "--tee"), ElementsAre(0U, 0U));
  EXPECT_THAT(parse_streams("3", 2, "--tee"), ElementsAre(3U, 3U));
  EXPECT_THAT(parse_streams("1:2", 3, "--tee"), ElementsAre(0U, 2U, 0U));
  EXPECT_THAT(parse_streams("0:1,2:3", 3, "--tee"), ElementsAre(1U, 0U, 3U));
}

TEST(LaunchPlan, TeeIsShownAndKeptRedirectsOnlyKept) {
  const auto made = plan({"-n2", "--log-dir=logs", "-r", "3", "-t", "0:1"});
  EXPECT_THAT(made.logged, ElementsAre(3U, 3U));
  EXPECT_THAT(made.on_console, ElementsAre(1U, 0U));
  EXPECT_THAT(plan({"-n2", "-t", "3"}).logged, ElementsAre(0U, 0U)) << "no folder, nothing to keep it in";
}

}  // namespace
