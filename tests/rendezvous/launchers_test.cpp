// SPDX-License-Identifier: BSD-3-Clause
//
// The same program, unchanged, under the launchers of others. Where one is not installed the test says so by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/spawned.h"

namespace cohort::test {
namespace {

bool is_installed(const std::string& program) {
  return Spawned({"sh", "-c", "command -v " + program}, {}).finish().status == 0;
}

void expect_three_ranks(const std::vector<std::string>& command) {
  const auto result = Spawned(command, {{"HOME", "/tmp"}}).finish();
  EXPECT_EQ(result.status, 0) << result.output;
  for (const auto* const line : {"rank 0 of 3", "rank 1 of 3", "rank 2 of 3"}) {
    EXPECT_THAT(result.output, ::testing::HasSubstr(line));
  }
}

TEST(LaunchersTest, OpenMpi) {
  if (!is_installed("mpirun.openmpi")) GTEST_SKIP() << "Open MPI's mpirun is not installed (openmpi-bin)";
  expect_three_ranks({"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", EXCHANGING_RANK});
  // Through a wrapper script, as users do.
  expect_three_ranks({"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", "sh", "-c",
                      std::string(EXCHANGING_RANK) + "; exit $?"});
}

TEST(LaunchersTest, Mpich) {
  if (!is_installed("mpirun.mpich")) GTEST_SKIP() << "MPICH's mpirun is not installed (mpich)";
  expect_three_ranks({"mpirun.mpich", "-n", "3", EXCHANGING_RANK});
  expect_three_ranks({"mpirun.mpich", "-n", "3", "sh", "-c", std::string(EXCHANGING_RANK) + "; exit $?"});
}

}  // namespace
}  // namespace cohort::test
