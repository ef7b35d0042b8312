// SPDX-License-Identifier: BSD-3-Clause
#include "run/rank_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cohort::tool {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(OutputTail, KeepsTheLastLines) {
  OutputTail tail;
  for (int i = 0; i < 30; ++i) tail.add(standard_output, "line " + std::to_string(i));
  EXPECT_THAT(tail.lines(), SizeIs(20));
  EXPECT_EQ(tail.lines().front(), "line 10");
  EXPECT_EQ(tail.lines().back(), "line 29");
}

TEST(OutputTail, NoStreamPushesOutTheLastWordsOfTheOther) {
  OutputTail tail;
  for (int i = 0; i < 15; ++i) tail.add(standard_error, "error " + std::to_string(i));
  for (int i = 0; i < 30; ++i) tail.add(standard_output, "line " + std::to_string(i));
  const auto lines = tail.lines();
  ASSERT_THAT(lines, SizeIs(20));
  EXPECT_EQ(lines[0], "error 5");
  EXPECT_EQ(lines[9], "error 14");
  EXPECT_EQ(lines[10], "line 20");
  EXPECT_EQ(lines[19], "line 29");
}

TEST(OutputTail, StreamsStayInTheOrderInWhichTheyWereRead) {
  OutputTail tail;
  tail.add(standard_output, "a");
  tail.add(standard_error, "b");
  tail.add(standard_output, "c");
  EXPECT_THAT(tail.lines(), ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace cohort::tool
