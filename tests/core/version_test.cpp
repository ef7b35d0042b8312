// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/cohort.h>
#include <gtest/gtest.h>

namespace cohort::test {
namespace {

TEST(VersionTest, LibraryAndHeadersAgree) {
  EXPECT_EQ(version().text, COHORT_VERSION);
  EXPECT_EQ(version().major, COHORT_VERSION_MAJOR);
  EXPECT_EQ(version().minor, COHORT_VERSION_MINOR);
  EXPECT_EQ(version().patch, COHORT_VERSION_PATCH);
}

}  // namespace
}  // namespace cohort::test
