// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "bench/output.h"
#include "results.h"

namespace {

using namespace cohort::bench;
using namespace cohort::measure;
using cohort::test::made_up_comparison;
using testing::HasSubstr;
using testing::Not;

/// Every tag is closed, in order, and what is between them is text. Empty: it is; else what is wrong.
std::string what_is_malformed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] != '<') {
      if (xml[at] == '>') return "a > outside of a tag";
      if (xml[at] == '&' && !std::regex_search(xml.substr(at, 8), std::regex("^&(amp|lt|gt|quot);"))) return "a bare &";
      ++at;
      continue;
    }
    const auto end = xml.find('>', at);
    if (end == std::string::npos) return "an unfinished tag";
    auto tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string::npos) return "a < in a tag";
    const auto name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != name) return "a closing " + name;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "an open quote in " + tag;
  }
  return open.empty() ? "" : "an open " + open.back();
}

std::size_t count_of(const std::string& text, const std::string& piece) {
  std::size_t n = 0;
  for (auto at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++n;
  return n;
}

TEST(BenchPlot, IsWellFormed) {
  const auto svg = to_svg({made_up_comparison(64, 1), made_up_comparison(1U << 20U, 100)});
  EXPECT_EQ(what_is_malformed(svg), "");
  EXPECT_THAT(svg, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("a&lt;b&amp;c"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(BenchPlot, HasALineForEachContestantInBothPictures) {
  const auto svg = to_svg({made_up_comparison(64, 1), made_up_comparison(1U << 20U, 100)});
  EXPECT_EQ(count_of(svg, "<polyline"), 4U);
  EXPECT_EQ(count_of(svg, ">shm (group)<"), 1U) << "the legend";
  EXPECT_EQ(count_of(svg, ">1 MiB<"), 2U) << "a label on both axes";
}

TEST(BenchPlot, WhatTakesLongerIsHigher) {
  const auto svg = to_svg({made_up_comparison(64, 1), made_up_comparison(1U << 20U, 100)});
  std::smatch found;
  ASSERT_TRUE(std::regex_search(svg, found, std::regex("points=\"([0-9.]+),([0-9.]+) ([0-9.]+),([0-9.]+)\"")));
  EXPECT_LT(std::stod(found[1]), std::stod(found[3]));
  EXPECT_GT(std::stod(found[2]), std::stod(found[4])) << "pictures count downwards";
}

TEST(BenchPlot, SurvivesNothingToShow) {
  EXPECT_EQ(what_is_malformed(to_svg({})), "");
  auto empty = made_up_comparison(64, 1);
  for (auto& row : empty.rows) row = {.contestant = row.contestant};
  EXPECT_EQ(what_is_malformed(to_svg({empty})), "");
}

TEST(BenchPlot, ABarrierHasNoBandwidth) {
  auto barrier = made_up_comparison(0, 1);
  barrier.command.operation = Operation::barrier;
  const auto svg = to_svg({barrier});
  EXPECT_EQ(what_is_malformed(svg), "");
  EXPECT_THAT(svg, Not(HasSubstr("bandwidth")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

}  // namespace
