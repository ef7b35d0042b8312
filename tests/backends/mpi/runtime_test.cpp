// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/runtime.h"

#include <cohort/cohort.h>
#include <cohort/env.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/mpi/mpi_double.h"
#include "core/run_with_deadline.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using mpi::choose_flavour;
using mpi::Flavour;
using mpi::Runtime;
using mpi::ThreadLevel;
using Variables = std::map<std::string, std::string, std::less<>>;

Deadline soon() {
  return Deadline::after(30ms);
}
Deadline late() {
  return Deadline::after(60s);
}

TEST(MpiRuntime, InitialisesAndFinalisesWhatNobodyElseDid) {
  MpiDouble library;
  Runtime runtime(library);
  runtime.start(late());
  runtime.start(late());
  EXPECT_TRUE(library.was_initialized);
  EXPECT_FALSE(runtime.is_serialized());
  runtime.finish();
  EXPECT_EQ(library.finalized, 1);
}

TEST(MpiRuntime, LeavesTheProgramsOwnInitialisationAlone) {
  MpiDouble library;
  library.was_initialized = true;
  Runtime runtime(library);
  runtime.start(late());
  runtime.finish();
  EXPECT_EQ(library.finalized, 0);
}

TEST(MpiRuntime, RefusesAThreadLevelThatIsTooLow) {
  for (const auto level : {ThreadLevel::single, ThreadLevel::funneled}) {
    MpiDouble library;
    library.was_initialized = true;
    library.level = level;
    Runtime runtime(library);
    EXPECT_ERROR(ValueError, runtime.start(late()), "MPI_THREAD_MULTIPLE");
  }
  MpiDouble without_threads;
  without_threads.level = ThreadLevel::single;
  Runtime runtime(without_threads);
  EXPECT_ERROR(ValueError, runtime.start(late()), "not built for threads");
}

TEST(MpiRuntime, RefusesAnMpiThatIsFinalised) {
  MpiDouble library;
  library.was_finalized = true;
  Runtime runtime(library);
  EXPECT_ERROR(ValueError, runtime.start(late()), "MPI_Finalize");
}

TEST(MpiRuntime, AnInitThatDoesNotEndIsGivenUpAndNotTriedAgain) {
  MpiDouble library;
  library.init_blocks = true;
  Runtime runtime(library);
  EXPECT_ERROR(OperationTimeoutError, runtime.start(soon()), "MPI_Init");
  EXPECT_ERROR(BackendError, runtime.start(late()), "cannot be called again");
  runtime.finish();
  EXPECT_EQ(library.finalized, 0);
  EXPECT_EQ(LateThreads::of_process().join_ended(), 1U);
  library.release();
  while (LateThreads::of_process().join_ended() > 0) std::this_thread::yield();
}

TEST(MpiRuntime, WhatWasLeftBehindForbidsFinalising) {
  MpiDouble library;
  Runtime runtime(library);
  runtime.start(late());
  auto kept = std::make_shared<int>(5);
  const std::weak_ptr<int> seen = kept;
  runtime.leave_behind(std::move(kept));
  runtime.finish();
  EXPECT_EQ(library.finalized, 0);
  EXPECT_FALSE(seen.expired());
}

TEST(MpiRuntime, OneCallAtATimeWhereMpiSaysSo) {
  MpiDouble library;
  library.level = ThreadLevel::serialized;
  Runtime runtime(library);
  runtime.start(late());
  const auto held = runtime.turn(late());
  EXPECT_TRUE(held);
  std::jthread([&] { EXPECT_THROW(static_cast<void>(runtime.turn(soon())), OperationTimeoutError); }).join();

  MpiDouble other;
  Runtime free(other);
  free.start(late());
  EXPECT_FALSE(free.turn(late())) << "no lock where none is needed";
}

TEST(MpiRuntime, ACommunicatorThatIsNotMadeInTimeIsGivenUp) {
  MpiDouble library;
  library.creation_blocks = true;
  Runtime runtime(library);
  runtime.start(late());
  EXPECT_ERROR(OperationTimeoutError, create_communicator(runtime, {0, 1}, "g", soon()), "has not joined");
  EXPECT_TRUE(runtime.has_left_behind());
  EXPECT_EQ(LateThreads::of_process().join_ended(), 1U);
  library.release();
  while (LateThreads::of_process().join_ended() > 0) std::this_thread::yield();
}

TEST(MpiRuntime, WhatMpiSaysOfAFailureIsPassedOn) {
  MpiDouble library;
  Runtime runtime(library);
  runtime.start(late());
  library.refuses = true;
  EXPECT_ERROR(BackendError, create_communicator(runtime, {0, 1}, "g", late()), "the double refuses create");
}

constexpr auto open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI";
constexpr auto mpich = "MPICH Version:\t4.0.2";

Flavour chosen(Variables variables, const mpi::LoadedMpi& loaded = {}) {
  return choose_flavour(Env::from(std::move(variables)), loaded);
}

mpi::LoadedMpi linked(const char* version) {
  return {.version = version};
}
mpi::LoadedMpi initialized(const char* version) {
  return {.version = version, .is_initialized = true};
}

TEST(MpiSelection, TheLauncherTells) {
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_SIZE", "2"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMI_SIZE", "2"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}), Flavour::mpich);
  EXPECT_EQ(chosen({{"PMIX_NAMESPACE", "job"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"SLURM_MPI_TYPE", "pmix_v4"}, {"PMI_RANK", "0"}}), Flavour::openmpi);
  EXPECT_EQ(chosen({{"SLURM_MPI_TYPE", "pmi2"}}), Flavour::mpich);
}

TEST(MpiSelection, WhatTheProgramHasInitialisedComesFirst) {
  EXPECT_EQ(chosen({{"OMPI_COMM_WORLD_SIZE", "2"}}, initialized(mpich)), Flavour::mpich);
  EXPECT_EQ(chosen({}, initialized(open_mpi)), Flavour::openmpi);
  EXPECT_ERROR(ValueError, chosen({{"COHORT_MPI", "openmpi"}}, initialized(mpich)), "the program itself uses MPICH");
  EXPECT_ERROR(ValueError, chosen({}, initialized("Other MPI 9")), "Other MPI 9");
}

TEST(MpiSelection, WhatIsOnlyLinkedComesLast) {
  EXPECT_EQ(chosen({{"PMI_SIZE", "2"}}, linked(open_mpi)), Flavour::mpich) << "libtorch may be linked with it";
  EXPECT_EQ(chosen({{"COHORT_MPI", "mpich"}}, linked(open_mpi)), Flavour::mpich);
  EXPECT_EQ(chosen({}, linked(mpich)), Flavour::mpich);
  EXPECT_ERROR(ValueError, chosen({}, linked("Other MPI 9")), "Other MPI 9");
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
