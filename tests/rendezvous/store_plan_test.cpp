// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/store_plan.h"

#include <cohort/secret.h>
#include <unistd.h>

#include "support/expect_error.h"
#include "support/temporary.h"

namespace cohort::test {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

StorePlan plan_for(const Variables& variables) {
  const auto env = Env::from(variables);
  return plan_store(find_launch(env).value(), env);
}

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base.insert_or_assign(name, value);
  return base;
}

const std::string unix_prefix = "unix:@cohort/" + std::to_string(::geteuid()) + "/";

const Variables started_by_hand = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "4000"}};
const Variables torchrun = {{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "10.0.0.1"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "none"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "77.1"}};
const Variables slurm = {{"SLURM_PROCID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_STEP_ID", "1"},
                         {"SLURM_JOB_ID", "42"},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"SLURM_STEP_NODELIST", "n[1-2]"}};

TEST(StorePlanTest, TheLaunchersStore) {
  const auto plan = plan_for(with(
      started_by_hand, {{"COHORT_STORE", "tcp://10.0.0.1:5"}, {"COHORT_RUN_ID", "r"}, {"COHORT_SECRET_FILE", "/s"}}));
  EXPECT_TRUE(plan.launcher_hosts);
  EXPECT_EQ(to_string(plan.endpoint), "tcp://10.0.0.1:5");
  EXPECT_EQ(plan.job_id, "r");
  EXPECT_EQ(plan.secret_file, "/s");
}

TEST(StorePlanTest, OneHostUsesAUnixSocketNamedAfterTheJob) {
  EXPECT_EQ(to_string(plan_for(started_by_hand).endpoint), unix_prefix + ":4000");
  EXPECT_EQ(to_string(plan_for(torchrun).endpoint), unix_prefix + "none:29500")
      << "torchrun's default id is not unique";
  EXPECT_EQ(to_string(plan_for(open_mpi).endpoint), unix_prefix + "77.1");
  EXPECT_EQ(to_string(plan_for(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}})).endpoint),
            unix_prefix + "slurm-42.1");
  EXPECT_FALSE(plan_for(started_by_hand).launcher_hosts);
  EXPECT_TRUE(plan_for(started_by_hand).secret_file.empty()) << "the kernel vouches for the user";
}

TEST(StorePlanTest, WithASecretNobodyElseCanComputeTheSocketsName) {
  const TemporaryFolder folder;
  Secret::generate().write_new(folder / "a");
  Secret::generate().write_new(folder / "b");
  const auto with_secret = [&](const char* name) {
    return plan_for(with(started_by_hand, {{"COHORT_SECRET_FILE", folder / name}}));
  };
  const auto plan = with_secret("a");
  EXPECT_EQ(plan.secret_file, folder / "a") << "the store asks for it too";
  EXPECT_EQ(plan.endpoint, with_secret("a").endpoint) << "the same on every rank";
  EXPECT_EQ(to_string(plan.endpoint).size(), unix_prefix.size() + 32);
  EXPECT_NE(plan.endpoint, with_secret("b").endpoint);
  EXPECT_EQ(to_string(plan.endpoint).find("4000"), std::string::npos);
}

TEST(StorePlanTest, ARestartHasItsOwnSocket) {
  EXPECT_EQ(to_string(plan_for(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).endpoint),
            unix_prefix + "none:29500#1");
}

TEST(StorePlanTest, LongJobNamesStillFitASocket) {
  const auto plan = plan_for(with(open_mpi, {{"PMIX_NAMESPACE", std::string(300, 'n') + "1"}}));
  const auto other = plan_for(with(open_mpi, {{"PMIX_NAMESPACE", std::string(299, 'n') + "m1"}}));
  EXPECT_LE(plan.endpoint.path.size(), 107U);
  EXPECT_NE(plan.endpoint, other.endpoint);
}

TEST(StorePlanTest, SeveralHostsNeedASecret) {
  const auto remote = with(started_by_hand, {{"MASTER_ADDR", "10.0.0.1"}});
  const auto message = message_of<ValueError>([&] { plan_for(remote); });
  EXPECT_THAT(message, ::testing::HasSubstr("cohort secret FILE"));
  EXPECT_THAT(message, ::testing::HasSubstr("COHORT_SECRET_FILE=FILE"));
  EXPECT_THAT(message, ::testing::HasSubstr("COHORT_INSECURE=1"));
  const auto guarded = plan_for(with(remote, {{"COHORT_SECRET_FILE", "/s"}}));
  EXPECT_EQ(to_string(guarded.endpoint), "tcp://10.0.0.1:4000") << "without a launcher MASTER_PORT is ours";
  EXPECT_EQ(guarded.secret_file, "/s");
  EXPECT_TRUE(plan_for(with(remote, {{"COHORT_INSECURE", "1"}})).insecure);
}

TEST(StorePlanTest, UnderALauncherThePortIsNotTheLaunchers) {
  const auto remote = with(torchrun, {{"LOCAL_WORLD_SIZE", "1"}, {"COHORT_SECRET_FILE", "/s"}});
  const auto plan = plan_for(remote);
  EXPECT_EQ(plan.endpoint.host, "10.0.0.1");
  EXPECT_NE(plan.endpoint.port, 29500);
  EXPECT_EQ(plan.endpoint.port, plan_for(with(remote, {{"RANK", "0"}})).endpoint.port) << "the same on every rank";
  EXPECT_NE(plan.endpoint.port, plan_for(with(remote, {{"TORCHELASTIC_RUN_ID", "other"}})).endpoint.port);
  EXPECT_EQ(plan_for(with(remote, {{"COHORT_STORE_PORT", "7777"}})).endpoint.port, 7777);
  const auto step = plan_for(with(slurm, {{"COHORT_SECRET_FILE", "/s"}}));
  EXPECT_EQ(step.endpoint.host, "n1");
}

TEST(StorePlanTest, WhatIsMissingIsNamed) {
  EXPECT_ERROR(ValueError, plan_for({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "MASTER_ADDR is missing or empty");
  EXPECT_ERROR(ValueError, plan_for({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}),
               "MASTER_ADDR is missing or empty");
  EXPECT_ERROR(ValueError, plan_for({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}),
               "MASTER_PORT is missing or empty");
  EXPECT_ERROR(ValueError, plan_for(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})), "mpirun -x MASTER_ADDR");
  EXPECT_ERROR(ValueError, plan_for({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}),
               "mpirun -genv MASTER_PORT");
}

}  // namespace
}  // namespace cohort::test
