// SPDX-License-Identifier: BSD-3-Clause
//
// The job's secret on one host: there for the ranks, behind wrapper scripts too, and for nobody after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tools/launched.h"

namespace {

using namespace cohort::test;

TEST(RunSecret, IsReadableThroughAWrapperScript) {
  const auto outcome = run_cohort({"run", "sh", "-c", "sh -c 'cat $COHORT_SECRET_FILE'"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::MatchesRegex("[0-9a-f]+\n"));
  EXPECT_EQ(outcome.out.size(), 65U);
}

TEST(RunSecret, CannotBeChangedAndIsOnlyForTheUser) {
  const auto outcome =
      run_cohort({"run", "sh", "-c",
                  "stat -L -c %a $COHORT_SECRET_FILE; echo x 2>/dev/null >$COHORT_SECRET_FILE || echo sealed; "
                  "wc -c <$COHORT_SECRET_FILE"});
  EXPECT_EQ(outcome.out, "600\nsealed\n65\n") << outcome.err;
}

TEST(RunSecret, IsGoneWithTheLauncher) {
  const auto outcome = run_cohort({"run", "sh", "-c", "echo $COHORT_SECRET_FILE"});
  EXPECT_THAT(outcome.out, testing::StartsWith("/proc/"));
  EXPECT_FALSE(std::filesystem::exists(outcome.out.substr(0, outcome.out.size() - 1)));
}

TEST(RunSecret, IsNewForEachRun) {
  const Strings show{"run", "sh", "-c", "cat $COHORT_SECRET_FILE"};
  EXPECT_NE(run_cohort(show).out, run_cohort(show).out);
}

}  // namespace
