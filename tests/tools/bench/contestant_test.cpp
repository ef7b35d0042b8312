// SPDX-License-Identifier: BSD-3-Clause
//
// Drivers that behave and drivers that do not, as shell scripts.
#include "bench/contestant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "support/temporary.h"

namespace {

using namespace cohort::bench;
using namespace cohort::measure;
using namespace std::chrono_literals;
using cohort::test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

/// A word of the shell.
std::string answer(const std::string& microseconds, const std::string& wrong = "0") {
  return R"('{"us": )" + microseconds + R"(, "batch": 1, "wrong": )" + wrong + "}'";
}

class DriverScript {
 public:
  explicit DriverScript(const std::string& script, std::chrono::milliseconds timeout = 20s)
      : contestant_({.backend = "script", .is_peer = true},
                    {.command = {"sh", "-c", script}, .environment = {{"GREETING", "ready"}}, .timeout = timeout},
                    guard_) {}
  Answer ask() { return contestant_.ask({}); }
  void release_memory() { contestant_.release_memory(); }

 private:
  cohort::tool::Guard guard_;
  DrivenContestant contestant_;
};

TEST(BenchDriver, AnswersLineByLine) {
  DriverScript driver("echo ready; while read line; do echo " + answer("[1.5, 2.5]") + "; done");
  for (int i = 0; i < 3; ++i) EXPECT_THAT(driver.ask().microseconds, ElementsAre(1.5, 2.5));
}

TEST(BenchDriver, GetsItsVariablesAndMaySpeakFirst) {
  DriverScript driver("echo hello; echo $GREETING; read line; echo " + answer("[1]"));
  EXPECT_THAT(driver.ask().microseconds, ElementsAre(1));
}

TEST(BenchDriver, IsAskedToReleaseItsMemory) {
  DriverScript driver("echo ready; while read -r line; do [ \"$line\" = release ] && released=7; echo " +
                      answer("[1]", "'${released:-0}'") + "; done");
  EXPECT_EQ(driver.ask().wrong, 0U);
  driver.release_memory();
  EXPECT_EQ(driver.ask().wrong, 7U);
}

TEST(BenchDriver, ThatCannotStartSaysWhy) {
  DriverScript driver("echo no such library >&2; exit 3");
  EXPECT_THAT(driver.ask().error, HasSubstr("ended before it was ready: no such library"));
}

TEST(BenchDriver, ThatDiesIsOutWithItsLastWords) {
  DriverScript driver("echo ready; read line; echo rank 1 lost >&2; kill -9 $$");
  EXPECT_THAT(driver.ask().error, HasSubstr("ended unexpectedly: rank 1 lost"));
  EXPECT_THAT(driver.ask().error, HasSubstr("ended unexpectedly")) << "and stays out";
}

TEST(BenchDriver, ThatHangsIsKilledWithAllItStarted) {
  const TemporaryFolder folder;
  const auto note = folder / "pid";
  {
    DriverScript driver("sleep 1000 & echo $! > " + note + "; echo ready; read line; wait", 300ms);
    EXPECT_THAT(driver.ask().error, HasSubstr("no answer within"));
  }
  pid_t started = 0;
  std::ifstream(note) >> started;
  ASSERT_GT(started, 0);
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  const auto is_there = [&] {
    std::string state;
    std::string ignored;
    std::ifstream status("/proc/" + std::to_string(started) + "/stat");
    return static_cast<bool>(status >> ignored >> ignored >> state) && state != "Z";
  };
  while (is_there() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(is_there());
}

TEST(BenchDriver, ThatTalksNonsenseIsAnError) {
  DriverScript driver("echo ready; read line; echo certainly; read line");
  EXPECT_ANY_THROW(driver.ask());
}

TEST(BenchContestant, LabelsNameTheMemoryOfOursAlone) {
  EXPECT_EQ((ContestantName{.backend = "shm", .memory = "group"}.label()), "shm (group)");
  EXPECT_EQ((ContestantName{.backend = "gloo:hd", .memory = "ordinary", .is_peer = true}.label()), "gloo:hd");
}

}  // namespace
