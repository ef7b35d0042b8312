// SPDX-License-Identifier: BSD-3-Clause
//
// The group tests and an example under other launchers, whose variables tell each rank its place.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"
#include "slurm.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int rank_count = 4;

Variables suite_on(const std::string& backend) {
  return {{"COHORT_TEST_BACKEND", "launched:" + backend}, {"COHORT_TEST_SIZE", std::to_string(rank_count)}};
}

void expect_all_passed(const Finished& result) {
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(count_of(result.output, "[  PASSED  ]"), static_cast<std::size_t>(rank_count)) << result.output;
}

void expect_example_ran(const Finished& result) {
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("4 ranks on 1 host")) << result.output;
}

struct MpiRun {
  const char* name;
  Command command;

  friend void PrintTo(const MpiRun& run, std::ostream* out) { *out << run.name; }
};

class UnderMpirun : public ::testing::TestWithParam<MpiRun> {
 protected:
  void SetUp() override {
    if (!is_installed(GetParam().command[0])) GTEST_SKIP() << GetParam().command[0] << " is not installed";
  }
  static Finished run(const Command& program, const Variables& variables = {}) {
    auto command = GetParam().command;
    command.insert(command.end(), {"-n", std::to_string(rank_count)});
    command.insert(command.end(), program.begin(), program.end());
    return finish(command, {.variables = variables}, 300s);
  }
};

TEST_P(UnderMpirun, Suite) {
  for (const auto* const backend : {"shm", "auto", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_all_passed(run({GROUP_TEST, "--gtest_filter=Groups/*", "--gtest_brief=1"}, suite_on(backend)));
  }
}

TEST_P(UnderMpirun, Example) {
  expect_example_ran(run({EXAMPLE}));
}

INSTANTIATE_TEST_SUITE_P(Clusters, UnderMpirun,
                         ::testing::Values(MpiRun{"OpenMpi",
                                                  {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"}},
                                           MpiRun{"Mpich", {"mpirun.mpich"}}),
                         [](const auto& each) { return each.param.name; });

#ifdef PYTHON
TEST(UnderSlurm, PythonProgram) {
  if (const auto why = Slurm::what_is_missing(); !why.empty()) GTEST_SKIP() << why;
  const Slurm slurm;
  const auto result = slurm.run({"-n", std::to_string(rank_count), "-O"}, {PYTHON, PYTHON_PROGRAM},
                                {{"PYTHONPATH", PYTHON_PACKAGE}, {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("4 ranks on shm, sum 10"));
}
#endif

TEST(UnderSlurm, SuiteAndExample) {
  if (const auto why = Slurm::what_is_missing(); !why.empty()) GTEST_SKIP() << why;
  const Slurm slurm;
  const Command flags{"-n", std::to_string(rank_count), "-O"};
  expect_example_ran(slurm.run(flags, {EXAMPLE}));
  for (const auto* const backend : {"auto", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_all_passed(slurm.run(flags, {GROUP_TEST, "--gtest_filter=Groups/*", "--gtest_brief=1"}, suite_on(backend)));
  }
}

}  // namespace
}  // namespace cohort::test
