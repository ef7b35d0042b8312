// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/log.h>

#include <thread>
#include <vector>

#include "core/log_format.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

class LogTest : public ::testing::Test {
 protected:
  struct Line {
    LogLevel level;
    int rank;
    std::string message;
  };
  LogTest() {
    set_log_sink([this](const LogRecord& record) {
      lines.push_back({record.level, record.rank, std::string(record.message)});
    });
  }
  ~LogTest() override {
    set_log_sink(nullptr);
    set_log_level(before);
  }

  LogLevel before = log_level();
  std::vector<Line> lines;
};

TEST_F(LogTest, LevelsFilter) {
  set_log_level(LogLevel::warn);
  log_info("no {}", 1);
  log_warn("yes {}", 2);
  log(LogLevel::error, "also");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].message, "yes 2");
  EXPECT_EQ(lines[1].level, LogLevel::error);
  set_log_level(LogLevel::off);
  log(LogLevel::error, "silence");
  EXPECT_EQ(lines.size(), 2U);
  set_log_level(LogLevel::debug);
  log_debug("now");
  EXPECT_EQ(lines.size(), 3U);
}

TEST_F(LogTest, LinesCarryTheRankOfTheirThread) {
  set_log_level(LogLevel::info);
  std::thread([] {
    set_log_rank(3);
    log_info("from rank 3");
  }).join();
  std::thread([] {
    set_log_rank(5);
    log_info("from rank 5");
  }).join();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].rank, 3);
  EXPECT_EQ(lines[1].rank, 5);
}

TEST_F(LogTest, ASinkThatThrowsHurtsNobody) {
  set_log_sink([](const LogRecord&) { throw std::runtime_error("disk full"); });
  log(LogLevel::error, "lost");
}

TEST(LogLevelTest, Names) {
  EXPECT_EQ(parse_log_level("WARN"), LogLevel::warn);
  EXPECT_EQ(to_string(LogLevel::trace), "trace");
  EXPECT_ERROR(ValueError, parse_log_level("verbose"), "trace, debug, info, warn, error, off");
}

TEST(LogFormatTest, StandardErrorShowsTimeLevelAndRank) {
  ::testing::internal::CaptureStderr();
  std::thread([] {
    set_log_rank(2);
    log(LogLevel::error, "message");
  }).join();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("[0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9] E \\[rank 2\\] message\n"));
}

}  // namespace
}  // namespace cohort::test
