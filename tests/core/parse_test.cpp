// SPDX-License-Identifier: BSD-3-Clause
#include "core/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::test {
namespace {

TEST(ParseTest, Integers) {
  EXPECT_EQ(parse_integer<int>("-12"), -12);
  EXPECT_EQ(parse_integer<std::uint16_t>("65535"), 65535);
  for (const auto* const text : {"", "x", "1x", " 1", "1 ", "+1", "0x10", "1.0"}) {
    EXPECT_FALSE(parse_integer<int>(text)) << text;
  }
  EXPECT_FALSE(parse_integer<std::uint16_t>("65536"));
  EXPECT_FALSE(parse_integer<std::uint16_t>("-1"));
}

TEST(ParseTest, Booleans) {
  for (const auto* const yes : {"y", "YES", "1", "t", "True", "on"}) EXPECT_EQ(parse_bool(yes), true) << yes;
  for (const auto* const no : {"n", "No", "0", "f", "FALSE", "off"}) EXPECT_EQ(parse_bool(no), false) << no;
  for (const auto* const neither : {"", "2", "maybe", "truee"}) EXPECT_FALSE(parse_bool(neither)) << neither;
}

TEST(ParseTest, Split) {
  EXPECT_THAT(split("a,b,,c", ','), ::testing::ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(split("", ','), ::testing::ElementsAre(""));
}

TEST(ParseTest, DidYouMean) {
  EXPECT_EQ(did_you_mean("tiemout", {"timeout", "rank"}), "timeout");
  EXPECT_EQ(did_you_mean("completely_else", {"timeout", "rank"}), "");
}

}  // namespace
}  // namespace cohort::test
