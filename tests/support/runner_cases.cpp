// SPDX-License-Identifier: BSD-3-Clause
//
// Cases of every kind, for the test of run_cases.py.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace {

int cases_of_this_process = 0;

TEST(Cases, Pass) {
  ++cases_of_this_process;
}

TEST(Cases, Fail) {
  ++cases_of_this_process;
  FAIL() << "as it should";
}

TEST(Cases, Crash) {
  std::abort();
}

TEST(Cases, AfterACrash) {
  EXPECT_EQ(cases_of_this_process++, 0) << "another process goes on behind a crash";
}

TEST(Cases, Hang) {
  for (;;) ::pause();
}

TEST(Cases, AfterAHang) {
  EXPECT_EQ(cases_of_this_process++, 0);
}

TEST(Cases, Skip) {
  GTEST_SKIP() << "for a reason";
}

TEST(CasesWithProcesses, AreAlone) {
  EXPECT_EQ(cases_of_this_process, 0);
}

TEST(CasesInTheEnd, ExitDifferently) {
  std::atexit([] { ::_exit(66); });  // as a sanitizer does that has found something
}

}  // namespace
