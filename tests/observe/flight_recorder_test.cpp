// SPDX-License-Identifier: BSD-3-Clause
//
// The recorder of the process. Each test runs in a process of its own, so that it can set the environment and does not
// affect the next test.
#include <cohort/env.h>
#include <cohort/flight_recorder.h>
#include <cohort/log.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/whole_file.h"
#include "observe/recorder.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary.h"

namespace cohort::test {
namespace {

using nlohmann::json;
using observe::GroupTrace;
using testing::HasSubstr;
using testing::IsEmpty;

/// Runs `body` in a child process with these environment variables.
void in_process(const std::map<std::string, std::string>& variables, const std::function<void()>& body) {
  Process child([&] {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    body();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

observe::GroupInfo rank_three() {
  return {.id = "g", .backend = "shm", .rank = 3, .size = 4};
}

TEST(FlightRecorderTest, IsOnWithoutBeingAsked) {
  // The test process is forked from a thread that has recorded before, as worker processes often are.
  observe::Recorder other({});
  GroupTrace(rank_three(), other).begin({.op = "barrier"});
  in_process({}, [] {
    EXPECT_EQ(FlightRecorder::capacity(), 2000U);
    GroupTrace group(rank_three());
    group.completed(group.begin({.op = "barrier", .collective_sequence = 1}));
    EXPECT_EQ(FlightRecorder::size(), 1U);
    const auto dump = json::parse(FlightRecorder::dump_json());
    EXPECT_EQ(dump.at("rank"), 3);
    EXPECT_EQ(dump.at("entries").size(), 1U);
    EXPECT_EQ(dump["entries"][0].at("thread_id"), std::to_string(::gettid()));
    EXPECT_EQ(json::from_cbor(FlightRecorder::dump_cbor()).at("pg_status"), dump.at("pg_status"));
    EXPECT_FALSE(json::parse(FlightRecorder::dump_json({.only_active = true})).contains("entries"));
    FlightRecorder::reset_all();
    EXPECT_EQ(FlightRecorder::size(), 0U);
  });
}

TEST(FlightRecorderTest, EnvironmentSetsTheSize) {
  in_process({{"COHORT_TRACE_BUFFER_SIZE", "7"}, {"TORCH_FR_BUFFER_SIZE", "8"}},
             [] { EXPECT_EQ(FlightRecorder::capacity(), 7U); });
  in_process({{"TORCH_FR_BUFFER_SIZE", "8"}}, [] { EXPECT_EQ(FlightRecorder::capacity(), 8U); });
  in_process({{"COHORT_TRACE_BUFFER_SIZE", "0"}}, [] { EXPECT_EQ(FlightRecorder::capacity(), 0U); });
}

TEST(FlightRecorderTest, EnvironmentIsChecked) {
  EXPECT_EQ(Env::from({{"COHORT_TRACE_SIGNAL", "SIGUSR2"}}).trace_signal, SIGUSR2);
  EXPECT_EQ(Env::from({{"COHORT_TRACE_SIGNAL", "USR1"}}).trace_signal, SIGUSR1);
  EXPECT_EQ(Env::from({{"COHORT_TRACE_SIGNAL", "34"}}).trace_signal, 34);
  EXPECT_EQ(Env::from({}).trace_signal, 0);
  EXPECT_TRUE(Env::from({{"COHORT_TRACE_STACKS", "1"}}).trace_stacks);
  EXPECT_EQ(Env::from({{"TORCH_FR_DUMP_TEMP_FILE", "/a"}}).trace_file, "/a");
  EXPECT_EQ(Env::from({{"TORCH_FR_DUMP_TEMP_FILE", "/a"}, {"COHORT_TRACE_FILE", "/b"}}).trace_file, "/b");
  EXPECT_EQ(Env::from({{"TORCH_NCCL_TRACE_BUFFER_SIZE", "3"}}).trace_buffer_size, 3U);
  for (const auto* const bad : {"KILL", "SEGV", "0", "99", "USR", "-1"}) {
    EXPECT_ERROR(ValueError, Env::from({{"COHORT_TRACE_SIGNAL", bad}}), "COHORT_TRACE_SIGNAL");
  }
  for (const auto* const bad : {"many", "-1", "99999999999"}) {
    EXPECT_ERROR(ValueError, Env::from({{"TORCH_FR_BUFFER_SIZE", bad}}), "TORCH_FR_BUFFER_SIZE");
  }
  EXPECT_ERROR(ValueError, Env::from({{"COHORT_TRACE_STACKS", "maybe"}}), "COHORT_TRACE_STACKS");
}

TEST(FlightRecorderTest, WritesTheFileThatIsNamed) {
  const TemporaryFolder folder;
  in_process({{"COHORT_TRACE_FILE", folder / "trace_"}}, [&] {
    GroupTrace group(rank_three());
    group.begin({.op = "barrier", .collective_sequence = 1});
    EXPECT_TRUE(FlightRecorder::dump("first"));
    EXPECT_TRUE(FlightRecorder::dump("second"));
  });
  EXPECT_THAT(names_in(folder / ""), testing::ElementsAre("trace_3")) << "and nothing else";
  const auto dump = json::parse(content_of(folder / "trace_3"));
  EXPECT_EQ(dump.at("reason"), "second");
  EXPECT_EQ(dump.at("entries").size(), 1U);
}

TEST(FlightRecorderTest, WritesNothingWhereNothingIsNamed) {
  const TemporaryFolder folder;
  in_process({}, [&] {
    std::filesystem::current_path(folder / "");
    GroupTrace group(rank_three());
    EXPECT_FALSE(FlightRecorder::dump("why"));
    EXPECT_THAT(names_in(folder / ""), IsEmpty());
  });
}

TEST(FlightRecorderTest, FailureToWriteIsLoggedNotThrown) {
  in_process({{"COHORT_TRACE_FILE", "/nowhere/at/all/trace_"}}, [] {
    std::string logged;
    set_log_sink([&logged](const LogRecord& record) { logged += record.message; });
    EXPECT_FALSE(FlightRecorder::dump("why"));
    EXPECT_THAT(logged, HasSubstr("/nowhere/at/all/trace_0"));
  });
}

TEST(FlightRecorderTest, LastWriterWins) {
  const TemporaryFolder folder;
  in_process({{"COHORT_TRACE_FILE", folder / "trace_"}}, [&] {
    GroupTrace group(rank_three());
    std::vector<std::string> calls;
    FlightRecorder::set_writer([&](std::string_view, int) { calls.emplace_back("first"); });
    FlightRecorder::set_writer([&](std::string_view bytes, int rank) {
      calls.push_back("second " + std::to_string(rank) + " " + json::parse(bytes).at("reason").get<std::string>());
    });
    EXPECT_TRUE(FlightRecorder::dump("why"));
    EXPECT_THAT(calls, testing::ElementsAre("second 3 why"));
    EXPECT_THAT(names_in(folder / ""), IsEmpty());

    FlightRecorder::set_writer([](std::string_view, int) { throw std::runtime_error("disk full"); });
    set_log_level(LogLevel::off);
    EXPECT_FALSE(FlightRecorder::dump("why"));

    FlightRecorder::set_writer(nullptr);
    EXPECT_TRUE(FlightRecorder::dump("why"));
    EXPECT_THAT(names_in(folder / ""), testing::ElementsAre("trace_3"));
  });
}

/// Waits for a dump to be written, and returns its reason.
struct DumpSeen {
  DumpSeen() {
    FlightRecorder::set_writer(
        [this](std::string_view bytes, int) { promise.set_value(json::parse(bytes).at("reason").get<std::string>()); });
  }
  ~DumpSeen() { FlightRecorder::set_writer(nullptr); }
  DumpSeen(const DumpSeen&) = delete;
  DumpSeen& operator=(const DumpSeen&) = delete;

  std::string reason() {
    auto future = promise.get_future();
    if (future.wait_for(std::chrono::seconds(30)) != std::future_status::ready) return "no dump came";
    return future.get();
  }

  std::promise<std::string> promise;
};

volatile sig_atomic_t own_handler_ran = 0;

TEST(FlightRecorderTest, SignalMakesADump) {
  in_process({}, [] {
    static_cast<void>(::signal(SIGUSR2, [](int) { own_handler_ran = 1; }));
    for (int round = 0; round < 2; ++round) {
      DumpSeen seen;
      FlightRecorder::dump_on_signal(SIGUSR2);
      ::raise(SIGUSR2);
      EXPECT_EQ(seen.reason(), "signal " + std::to_string(SIGUSR2));
      EXPECT_EQ(own_handler_ran, 0);
      FlightRecorder::dump_on_signal(0);
    }
    ::raise(SIGUSR2);
    EXPECT_EQ(own_handler_ran, 1) << "the program's own handler is back";
  });
}

TEST(FlightRecorderTest, EnvironmentNamesTheSignal) {
  const TemporaryFolder folder;
  in_process({{"COHORT_TRACE_SIGNAL", "USR1"}}, [] {
    GroupTrace group(rank_three());
    DumpSeen seen;
    ::raise(SIGUSR1);
    EXPECT_EQ(seen.reason(), "signal " + std::to_string(SIGUSR1));
    FlightRecorder::dump_on_signal(0);
  });
}

TEST(FlightRecorderTest, UncatchableSignalIsRefused) {
  in_process({}, [] { EXPECT_ERROR(ValueError, FlightRecorder::dump_on_signal(SIGKILL), "signal 9"); });
}

TEST(FlightRecorderTest, ChildOfAForkDoesNotDumpForItsParent) {
  in_process({}, [] {
    std::atomic<int> dumps{0};
    FlightRecorder::set_writer([&](std::string_view, int) { ++dumps; });
    FlightRecorder::dump_on_signal(SIGUSR2);
    Process child([] { return ::raise(SIGUSR2); });
    EXPECT_EQ(child.wait(), 0);
    FlightRecorder::dump_on_signal(0);
    EXPECT_EQ(dumps.load(), 0);
  });
}

TEST(FlightRecorderTest, FileIsReplacedAsAWhole) {
  const TemporaryFolder folder;
  const auto path = folder / "dump";
  write_whole_file(path, "a long first version");
  std::ifstream reader(path);  // a reader that has the file open keeps the old content
  write_whole_file(path, "second");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "a long first version");
  EXPECT_EQ(content_of(path), "second");
  EXPECT_THAT(names_in(folder / ""), testing::ElementsAre("dump"));
}

}  // namespace
}  // namespace cohort::test
