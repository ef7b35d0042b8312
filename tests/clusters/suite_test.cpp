// SPDX-License-Identifier: BSD-3-Clause
//
// The group tests with each rank as a process on one of several hosts that share nothing but a network.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "job.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

struct SuiteRun {
  std::string backend;
  int hosts;

  friend std::string to_string(const SuiteRun& run) { return fmt::format("{}On{}Hosts", run.backend, run.hosts); }
  friend void PrintTo(const SuiteRun& run, std::ostream* out) { *out << to_string(run); }
};

class SuiteOnHosts : public ::testing::TestWithParam<SuiteRun> {};

TEST_P(SuiteOnHosts, Passes) {
  if (!Hosts::what_is_missing().empty()) GTEST_SKIP() << Hosts::what_is_missing();
  const auto [backend, count] = GetParam();
  const Hosts hosts(count);
  Job job(hosts, {GROUP_TEST, "--gtest_filter=Groups/*", "--gtest_brief=1"},
          {.variables = {{"COHORT_TEST_BACKEND", "launched:" + backend},
                         {"COHORT_TEST_SIZE", std::to_string(2 * count)},
                         {"COHORT_LOG", "info"}}});
  EXPECT_THAT(job.wait(540s), Each(0)) << job.output();
  const auto output = job.output();
  EXPECT_EQ(count_of(output, "[  PASSED  ]"), static_cast<std::size_t>(2 * count)) << output;
  if (backend != "hybrid") return;
  // The ranks were not told which of them share a host.
  EXPECT_THAT(output, HasSubstr(count == 2 ? "hybrid over gloo, 2 hosts: 0-1 | 2-3"
                                           : "hybrid over gloo, 3 hosts: 0-1 | 2-3 | 4-5"));
}

INSTANTIATE_TEST_SUITE_P(Clusters, SuiteOnHosts,
                         ::testing::Values(SuiteRun{"gloo", 2}, SuiteRun{"gloo", 3}, SuiteRun{"hybrid", 2},
                                           SuiteRun{"hybrid", 3}),
                         [](const auto& each) { return to_string(each.param); });

}  // namespace
}  // namespace cohort::test
