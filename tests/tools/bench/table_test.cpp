// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/output.h"
#include "results.h"

namespace {

using namespace cohort::bench;
using namespace cohort::measure;
using cohort::test::made_up_comparison;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(BenchTable, ColumnsAreThoseOfNcclTests) {
  const auto header = lines_of(table_header(true));
  EXPECT_THAT(words_of(header.at(1)),
              ElementsAre("#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
                          "algbw", "busbw", "#wrong", "p50", "p99", "p50", "p99", "backend"));
  const auto rows = lines_of(table_rows(made_up_comparison(1000000, 100), true));
  ASSERT_EQ(rows.size(), 2U);
  // 1e6 bytes in 100 us are 10 GB/s; four ranks' all_reduce carries 1.5 times that.
  EXPECT_THAT(words_of(rows[0]), ElementsAre("1000000", "250000", "f32", "sum", "-1", "-", "-", "-", "-", "100.0",
                                             "10.00", "15.00", "0", "-", "-", "100.0", "100.0", "shm", "(group)"));
  EXPECT_THAT(words_of(rows[1]), ElementsAre("1000000", "250000", "f32", "sum", "-1", "200.0", "5.00", "7.50", "N/A",
                                             "-", "-", "-", "-", "200.0", "200.0", "-", "-", "a<b&c"));
}

TEST(BenchTable, ColumnsAreInLine) {
  const auto header = lines_of(table_header(true));
  const auto rows = lines_of(table_rows(made_up_comparison(1000000, 100), true));
  EXPECT_EQ(header[1].find(" root") + 5, rows[0].find(" -1") + 3);
  EXPECT_EQ(header[1].find("backend"), rows[0].find("shm"));
}

TEST(BenchTable, FooterCountsWrongValues) {
  auto comparison = made_up_comparison(1000000, 100);
  EXPECT_THAT(table_footer({comparison}), HasSubstr("# Out of bounds values : 0 OK\n"));
  comparison.rows[0].in_place.wrong = 3;
  EXPECT_THAT(table_footer({comparison}), HasSubstr("# Out of bounds values : 3 FAILED\n"));
  EXPECT_EQ(count_wrong({comparison, comparison}), 6U);
}

TEST(BenchTable, FooterAveragesOverSizes) {
  const auto footer = table_footer({made_up_comparison(1000000, 100), made_up_comparison(1000000, 200)});
  EXPECT_THAT(footer, HasSubstr("# Avg bus bandwidth    : 11.250   shm (group)"));
}

TEST(BenchTable, FooterSaysWhatFailedButNotWhatPeersDoNotHave) {
  auto comparison = made_up_comparison(1000000, 100);
  comparison.rows[1].out_of_place = {.refusal = "has none"};
  const auto footer = table_footer({comparison, comparison});
  EXPECT_THAT(footer, HasSubstr("a<b&c, not measured (all_reduce in-place): lost"));
  EXPECT_THAT(footer, HasSubstr("shm (group), not measured (all_reduce out-of-place): it works in place alone"));
  EXPECT_THAT(footer, Not(HasSubstr("has none")));
}

TEST(BenchCsv, HasAValueForEachColumn) {
  const auto columns = [](const std::string& line) { return std::count(line.begin(), line.end(), ','); };
  const auto rows = lines_of(csv_rows(made_up_comparison(1000000, 100)));
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& row : rows) EXPECT_EQ(columns(row), columns(csv_header()));
  EXPECT_THAT(rows[0], HasSubstr("all_reduce,4,1000000,250000,f32,sum,-1,shm,group,in-place,100.0000"));
}

TEST(BenchJson, HasEveryRound) {
  const auto document = nlohmann::json::parse(to_json({made_up_comparison(1000000, 100)}, 8));
  EXPECT_EQ(document.at("cores"), 8);
  const auto& results = document.at("results");
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[0].at("refusal"), "it works in place alone");
  EXPECT_EQ(results[1].at("rounds_us"), (nlohmann::json{100.0, 100.0}));
  EXPECT_EQ(results[1].at("busbw_GBps"), 15.0);
  EXPECT_EQ(results[3].at("failure"), "lost");
}

}  // namespace
