// SPDX-License-Identifier: BSD-3-Clause
//
// The variables are those the launchers were seen to set.
#include <cohort/launch.h>

#include "rendezvous/slurm.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

TEST(LaunchTest, NothingSet) {
  EXPECT_FALSE(find_launch(Env::from({})));
}

TEST(LaunchTest, Torchrun) {
  const auto launch = find_launch(Env::from({{"RANK", "5"},
                                             {"WORLD_SIZE", "8"},
                                             {"LOCAL_RANK", "1"},
                                             {"LOCAL_WORLD_SIZE", "4"},
                                             {"GROUP_RANK", "1"},
                                             {"MASTER_ADDR", "node0"},
                                             {"MASTER_PORT", "29500"},
                                             {"TORCHELASTIC_RUN_ID", "job"},
                                             {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, Launcher::torchrun);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 4);
  EXPECT_EQ(launch->node, 1);
  EXPECT_EQ(launch->job, "job");
  EXPECT_EQ(launch->restart_count, 2);
  EXPECT_EQ(launch->master_addr, "node0");
  EXPECT_EQ(launch->master_port, 29500);
  EXPECT_EQ(launch->found_in.at("rank"), "RANK");
}

TEST(LaunchTest, ByHandAndByCohortRun) {
  const auto by_hand = find_launch(Env::from({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
  EXPECT_EQ(by_hand->launcher, Launcher::by_hand);
  const auto ours = find_launch(Env::from({{"RANK", "0"},
                                           {"WORLD_SIZE", "2"},
                                           {"COHORT_STORE", "unix:@x"},
                                           {"COHORT_RUN_ID", "r1"},
                                           {"TORCHELASTIC_RUN_ID", "r1"}}));
  EXPECT_EQ(ours->launcher, Launcher::cohort);
  EXPECT_EQ(ours->job, "r1");
}

TEST(LaunchTest, OpenMpi) {
  const auto launch = find_launch(Env::from({{"OMPI_COMM_WORLD_RANK", "3"},
                                             {"OMPI_COMM_WORLD_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_NODE_RANK", "3"},
                                             {"PMIX_NAMESPACE", "1234.1"},
                                             // Open MPI inside a SLURM allocation: its daemons are the step's tasks
                                             {"SLURM_PROCID", "0"},
                                             {"SLURM_STEP_ID", "0"},
                                             {"SLURM_NTASKS", "1"}}));
  EXPECT_EQ(launch->launcher, Launcher::open_mpi);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 4);
  EXPECT_EQ(launch->local_size, 4);
  EXPECT_EQ(launch->job, "1234.1");
  EXPECT_FALSE(launch->node) << "OMPI_COMM_WORLD_NODE_RANK is a rank on the node, not the node's index";
}

TEST(LaunchTest, MpichAndPals) {
  const auto hydra = find_launch(Env::from({{"PMI_RANK", "1"},
                                            {"PMI_SIZE", "2"},
                                            {"MPI_LOCALRANKID", "1"},
                                            {"MPI_LOCALNRANKS", "2"},
                                            {"SLURM_PROCID", "0"},
                                            {"SLURM_STEP_ID", "0"},
                                            {"SLURM_NTASKS", "1"}}));
  EXPECT_EQ(hydra->launcher, Launcher::pmi) << "Hydra's proxies are SLURM's tasks, not its ranks";
  EXPECT_EQ(hydra->rank, 1);
  EXPECT_EQ(hydra->local_size, 2);
  const auto pals = find_launch(Env::from({{"PALS_RANKID", "5"}, {"PMI_SIZE", "8"}}));
  EXPECT_EQ(pals->rank, 5);
  EXPECT_EQ(pals->size, 8);
}

TEST(LaunchTest, Slurm) {
  const auto env = Env::from({{"SLURM_PROCID", "5"},
                              {"SLURM_NTASKS", "16"},
                              {"SLURM_STEP_NUM_TASKS", "7"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_NODEID", "2"},
                              {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                              {"SLURM_STEP_NODELIST", "gpu[07-09,12]"},
                              {"SLURM_JOB_NODELIST", "cpu1,gpu[07-09,12]"},
                              {"SLURM_JOB_ID", "99"},
                              {"SLURM_STEP_ID", "3"},
                              {"PMI_RANK", "5"},
                              {"PMI_SIZE", "7"}});
  const auto launch = find_launch(env);
  EXPECT_EQ(launch->launcher, Launcher::slurm);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 7) << "the step's tasks, not the job's";
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->node, 2);
  EXPECT_EQ(launch->job, "slurm-99.3");
  EXPECT_EQ(launch->master_addr, "gpu07") << "the step's first host, leading zero kept";
  EXPECT_EQ(find_launch(env.with("MASTER_ADDR", "other"))->master_addr, "other");
}

TEST(LaunchTest, ABatchScriptIsNotAStep) {
  EXPECT_FALSE(find_launch(Env::from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "9"}})))
      << "sbatch sets SLURM_PROCID=0 in the script, which is one process and not rank 0 of four";
}

TEST(LaunchTest, KubernetesCountsPods) {
  const std::map<std::string, std::string, std::less<>> pod = {{"KUBERNETES_PORT", "tcp://10.0.0.1:443"},
                                                               {"RANK", "1"},
                                                               {"WORLD_SIZE", "2"},
                                                               {"MASTER_ADDR", "job-master-0"},
                                                               {"MASTER_PORT", "23456"}};
  const auto one_process_per_pod = find_launch(Env::from(pod));
  EXPECT_EQ(one_process_per_pod->rank, 1);
  EXPECT_EQ(one_process_per_pod->launcher, Launcher::by_hand);
  for (const auto* const variable : {"PET_NPROC_PER_NODE", "NPROC_PER_NODE"}) {
    const auto env = Env::from(pod).with(variable, "8");
    EXPECT_ERROR(ValueError, find_launch(env), "counts pods");
    EXPECT_ERROR(ValueError, find_launch(env), "cohort run");
    EXPECT_EQ(find_launch(env.with("LOCAL_RANK", "0"))->rank, 1) << "a launcher in the pod has re-counted";
  }
}

TEST(LaunchTest, IncompleteOrOutOfRangeIsNamed) {
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "0"}})), "WORLD_SIZE is missing or empty");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"WORLD_SIZE", "2"}})), "RANK is missing or empty");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"WORLD_SIZE", "2"}, {"RANK", ""}})), "RANK is missing or empty");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "2"}, {"WORLD_SIZE", "2"}})), "RANK=2 with WORLD_SIZE=2");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "-1"}, {"WORLD_SIZE", "2"}})), "RANK=-1");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "0"}, {"WORLD_SIZE", "0"}})), "WORLD_SIZE=0");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "x"}, {"WORLD_SIZE", "1"}})), "RANK=\"x\" is not a number");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "99999"}})),
               "MASTER_PORT");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}})),
               "LOCAL_WORLD_SIZE=3 is more than");
  EXPECT_ERROR(ValueError, find_launch(Env::from({{"OMPI_COMM_WORLD_RANK", "0"}})), "OMPI_COMM_WORLD_SIZE");
}

TEST(SlurmListTest, FirstHost) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("node1,node2"), "node1");
  EXPECT_EQ(first_slurm_host("node[07-09,12],login1"), "node07");
  EXPECT_EQ(first_slurm_host("rack[1-2]n[03-10]"), "rack1n03");
  EXPECT_EQ(first_slurm_host("n[5]-ib"), "n5-ib");
  for (const auto* const bad : {"", ",a", "node[", "node[]", "node[a-b]", "node]1"}) {
    EXPECT_ERROR(ValueError, first_slurm_host(bad), "not a SLURM node list");
  }
}

TEST(SlurmListTest, TasksOnNode) {
  EXPECT_EQ(slurm_tasks_on_node("4", 0), 4);
  EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(slurm_tasks_on_node("2(x3),1", 3), 1);
  EXPECT_ERROR(ValueError, slurm_tasks_on_node("2(x3),1", 4), "no node 4");
  for (const auto* const bad : {"", "x", "2(x", "2(x)", "2(x0)", "0", "2(3)"}) {
    EXPECT_THROW(slurm_tasks_on_node(bad, 0), ValueError) << bad;
  }
}

}  // namespace
}  // namespace cohort::test
