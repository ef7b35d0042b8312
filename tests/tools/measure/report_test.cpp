// SPDX-License-Identifier: BSD-3-Clause
#include "measure/report.h"

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/temporary.h"

namespace {

using namespace cohort::measure;
using cohort::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Row row_with(std::optional<double> ratio, std::optional<double> difference, Bar bar) {
  return {.what = "what", .unit = "us", .ours = 12, .ratio = ratio, .difference = difference, .bar = bar};
}

TEST(BenchReport, ABarIsForTheRatioThenTheDifferenceThenTheFigure) {
  const TemporaryFolder folder;
  Report report;
  report.add(row_with(1.2, std::nullopt, {Bar::Kind::at_most, 1.5}));
  report.add(row_with(1.2, std::nullopt, {Bar::Kind::at_least, 1.5}));
  report.add(row_with(std::nullopt, 4, {Bar::Kind::at_most, 3}));
  report.add(row_with(std::nullopt, std::nullopt, {Bar::Kind::at_most, 20}));
  report.add(row_with(std::nullopt, std::nullopt, {Bar::Kind::at_most, 10, 1U << 20U}));
  report.write_json(folder / "report.json");
  const auto document = nlohmann::json::parse(std::ifstream(folder / "report.json"));
  std::vector<std::string> results;
  for (const auto& row : document.at("rows")) results.push_back(row.at("result"));
  EXPECT_THAT(results, testing::ElementsAre("met", "MISSED: 1.20x", "MISSED: 4.0 us", "met", HasSubstr("not judged")));
}

TEST(BenchReport, TwoAreComparedRoundByRound) {
  const std::vector<double> ours{10, 40, 20};
  const std::vector<double> peer{20, 60, 50};
  const auto row = compared("what", "us", ours, peer, "peer", at_most(1));
  EXPECT_EQ(row.ours, 20);
  EXPECT_EQ(row.peer, 50);
  EXPECT_EQ(row.ratio, 0.5);
  EXPECT_EQ(compared("what", "us", ours, peer, "peer", at_least(2)).ratio, 2) << "how many times faster";
}

TEST(BenchReport, PrintsEachRowOnce) {
  Report report;
  report.add({.what = "first figure", .unit = "us", .ours = 1});
  testing::internal::CaptureStdout();
  report.print("Title");
  EXPECT_THAT(testing::internal::GetCapturedStdout(), AllOf(HasSubstr("Title"), HasSubstr("first figure")));
  report.add({.what = "second figure", .unit = "us", .ours = 2});
  testing::internal::CaptureStdout();
  report.print("Another");
  EXPECT_THAT(testing::internal::GetCapturedStdout(), AllOf(HasSubstr("second figure"), Not(HasSubstr("first"))));
}

TEST(BenchReport, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_ERROR(cohort::Error, Report().write_json("/proc/nowhere/report.json"), "/proc/nowhere/report.json");
}

}  // namespace
