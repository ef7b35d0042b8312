// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/secret.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launched.h"
#include "support/temporary.h"

namespace {

using namespace cohort::test;
using testing::HasSubstr;

TEST(SecretCommand, WritesAFileThatLoads) {
  const TemporaryFolder folder;
  const auto path = folder / "job.secret";
  const auto outcome = run_cohort({"secret", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("export COHORT_SECRET_FILE=" + path));
  EXPECT_NO_THROW(cohort::Secret::load(path));
}

TEST(SecretCommand, DoesNotOverwrite) {
  const TemporaryFolder folder;
  const auto path = folder / "job.secret";
  ASSERT_EQ(run_cohort({"secret", path}).code, 0);
  const auto before = cohort::Secret::load(path).hex();
  const auto outcome = run_cohort({"secret", path});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("File exists"));
  EXPECT_EQ(cohort::Secret::load(path).hex(), before);
}

TEST(SecretCommand, NeedsAFile) {
  EXPECT_NE(run_cohort({"secret"}).code, 0);
  EXPECT_EQ(run_cohort({"secret", "--help"}).code, 0);
}

}  // namespace
