// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/selection.h"

#include <cohort/cohort.h>
#include <cohort/env.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

using mpi::choose_flavour;
using mpi::Flavour;
using Variables = std::map<std::string, std::string, std::less<>>;

constexpr auto open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI";
constexpr auto mpich = "MPICH Version:\t4.0.2";

Flavour chosen(Variables variables, std::string_view loaded = "") {
  return choose_flavour(Env::from(std::move(variables)), loaded);
}

TEST(MpiSelection, TheLauncherTells) {
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_SIZE", "2"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMI_SIZE", "2"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}), Flavour::mpich);
  EXPECT_EQ(chosen({{"PMIX_NAMESPACE", "job"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"SLURM_MPI_TYPE", "pmix_v4"}, {"PMI_RANK", "0"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"SLURM_MPI_TYPE", "pmi2"}}), Flavour::mpich);
}

TEST(MpiSelection, WhatTheProgramUsesComesFirst) {
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_SIZE", "2"}}, mpich), Flavour::mpich);
  EXPECT_EQ(chosen({}, open_mpi), Flavour::openmpi);
  EXPECT_ERROR(ValueError, chosen({{"COHORT_MPI", "openmpi"}}, mpich), "the program itself uses MPICH");
  EXPECT_ERROR(ValueError, chosen({}, "Other MPI 9"), "Other MPI 9");
}

TEST(MpiSelection, OnesOwnWordCountsWhereNothingElseTells) {
  EXPECT_EQ(chosen({{"COHORT_MPI", "mpich"}}), Flavour::mpich);
  EXPECT_EQ(chosen({{"COHORT_MPI", "openmpi"}, {"PMI_SIZE", "1"}}), Flavour::openmpi);
  EXPECT_ERROR(ValueError, chosen({{"COHORT_MPI", "lam"}}), "openmpi or mpich");
}

TEST(MpiSelection, WithoutALauncherItSaysHowToStart) {
  EXPECT_ERROR(ValueError, chosen({}), "mpirun -n 4");
  EXPECT_ERROR(ValueError, chosen({{"COHORT_RUN_ID", "a"}, {"RANK", "0"}}), "not by cohort run");
}

TEST(MpiSelection, AGroupWithoutALauncherIsRefused) {
  if (!backend_names().empty() &&
      ::testing::Value(backend_names(), ::testing::Not(::testing::Contains(std::string("mpi"))))) {
    GTEST_SKIP() << "built without MPI";
  }
  const auto store = std::make_shared<HashStore>();
  const GroupMembers alone{.store = store, .rank = 0, .size = 1};
  EXPECT_ERROR(ValueError, new_group("mpi", std::chrono::seconds(5), "cpu", {}, alone), "mpirun");
  EXPECT_ERROR(KeyError, new_group("mpi", std::chrono::seconds(5), "cpu", {{"fast", true}}, alone), "fast");
  EXPECT_ERROR(ValueError, new_group("mpi", std::chrono::seconds(5), "cuda", {}, alone), "cpu memory");
}

}  // namespace
}  // namespace cohort::test
