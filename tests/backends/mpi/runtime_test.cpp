// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/mpi/communicators.h"
#include "backends/mpi/mpi_double.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using mpi::Runtime;
using mpi::ThreadLevel;

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
  EXPECT_EQ(mpi::join_late_threads(), 1U);
  library.release();
  while (mpi::join_late_threads() > 0) std::this_thread::yield();
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
  EXPECT_ERROR(OperationTimeoutError, create_communicator(runtime, {0, 1}, "g", soon()), "has not come");
  EXPECT_TRUE(runtime.has_left_behind());
  EXPECT_EQ(mpi::join_late_threads(), 1U);
  library.release();
  while (mpi::join_late_threads() > 0) std::this_thread::yield();
}

TEST(MpiRuntime, WhatMpiSaysOfAFailureIsPassedOn) {
  MpiDouble library;
  Runtime runtime(library);
  runtime.start(late());
  library.refuses = true;
  EXPECT_ERROR(BackendError, create_communicator(runtime, {0, 1}, "g", late()), "the double refuses create");
}

}  // namespace
}  // namespace cohort::test
