// SPDX-License-Identifier: BSD-3-Clause
#include "trace/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "made_dumps.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using testing::ElementsAre;
using trace::read_trace;
using trace::TraceState;

TEST(TraceReaderTest, ReadsWhatTheRecorderWrote) {
  MadeRank rank(5);
  auto& group = rank.join("g", {4, 5, 6}, "mine");
  run(group, {.op = "all_reduce", .sequence = 1, .sizes = {2, 3}});
  group.failed(begin(group, {.op = "broadcast", .sequence = 2}));
  begin(group, {.op = "recv", .sequence = 1, .peer = 2, .is_p2p = true});
  for (const auto& bytes : {rank.json({}, "because"), rank.cbor()}) {
    const auto dump = read_trace(bytes, "file");
    EXPECT_EQ(dump.rank, 5);
    EXPECT_FALSE(dump.host.empty());
    ASSERT_TRUE(dump.groups.contains("g"));
    EXPECT_EQ(dump.groups.at("g").name, "mine");
    EXPECT_THAT(dump.groups.at("g").ranks, ElementsAre(4, 5, 6));
    ASSERT_EQ(dump.entries.size(), 3U);
    const auto& first = dump.entries[0];
    EXPECT_EQ(first.rank, 5);
    EXPECT_EQ(first.backend, "shm");
    EXPECT_EQ(first.op, "all_reduce");
    EXPECT_EQ(first.collective_sequence, 1);
    EXPECT_EQ(first.state, TraceState::completed);
    EXPECT_EQ(first.timeout_ms, 30000);
    ASSERT_EQ(first.input.sizes.size(), 1U);
    EXPECT_THAT(first.input.sizes[0], ElementsAre(2, 3));
    EXPECT_THAT(first.input.dtypes, ElementsAre("f32"));
    EXPECT_GE(first.completed_ns, first.created_ns);
    EXPECT_EQ(dump.entries[1].state, TraceState::failed);
    EXPECT_EQ(dump.entries[2].state, TraceState::started);
    EXPECT_TRUE(dump.entries[2].is_p2p);
    EXPECT_EQ(dump.entries[2].peer, 6);
    ASSERT_EQ(dump.statuses.size(), 1U);
    EXPECT_EQ(dump.statuses[0].completed, 1);
    EXPECT_EQ(dump.statuses[0].enqueued, 2);
  }
  EXPECT_EQ(read_trace(rank.json({}, "because"), "file").reason, "because");
}

TEST(TraceReaderTest, ReadsPyTorchsDumps) {
  const auto dump = read_trace(R"({"version": "2.10", "comm_lib_version": "2.21.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": "2", "last_started_collective": "-1", "last_completed_collective": "1"}},
    "entries": [{"record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "thread_name": "t", "thread_id": "1",
      "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 5,
      "duration_ms": 0.5, "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]],
      "output_dtypes": ["Float"], "state": "completed", "time_discovered_started_ns": 0,
      "time_discovered_completed_ns": 9, "retired": true, "timeout_ms": 600000, "is_p2p": false}]})",
                               "/tmp/nccl_trace_rank_1");
  EXPECT_EQ(dump.rank, 1) << "from the file's name";
  ASSERT_EQ(dump.entries.size(), 1U);
  EXPECT_EQ(dump.entries[0].rank, 1);
  EXPECT_EQ(dump.entries[0].op, "all_reduce");
  EXPECT_EQ(dump.statuses[0].completed, 1);
}

TEST(TraceReaderTest, SaysWhatIsWrong) {
  const auto refuse = [](std::string_view bytes, const std::string& why) {
    EXPECT_ERROR(ValueError, read_trace(bytes, "the-file"), why);
    EXPECT_ERROR(ValueError, read_trace(bytes, "the-file"), "the-file");
  };
  refuse("", "empty");
  refuse("hello", "neither JSON nor CBOR");
  refuse("{\"version\": ", "cut off");
  refuse("\xa1\x61", "cut off");
  refuse("{}", "version");
  refuse(R"({"version": "3.0"})", "version 3.0");
  refuse(R"({"version": 2})", "\"version\" is not text");
  refuse(R"({"version": "2.10", "rank": -7})", "no rank -7");
  refuse(R"({"version": "2.10", "entries": 3})", "\"entries\" is not a list");
  refuse(R"({"version": "2.10", "entries": [3]})", "entry 0: it is not a map");
  refuse(R"({"version": "2.10", "entries": [{"process_group": ["a", "b"], "state": "tired"}]})", "tired");
  refuse(R"({"version": "2.10", "entries": [{"process_group": ["a", "b"], "op_id": []}]})",
         "\"op_id\" is not a number");
  refuse(R"({"version": "2.10", "entries": [{"process_group": ["a", "b"], "input_sizes": [[-1]]}]})", "not a size");
  refuse(R"({"version": "2.10", "pg_config": {"g": {"ranks": "[0, x]"}}})", "ranks");
}

TEST(TraceReaderTest, DeepNestingIsRefused) {
  EXPECT_ERROR(ValueError, read_trace("{\"a\":" + std::string(200'000, '['), "f"), "nested");
  EXPECT_ERROR(ValueError,
               read_trace("\xa1\x61"
                          "a" +
                              std::string(200'000, '\x81'),
                          "f"),
               "nested");
}

/// A map with a text or a byte string in pieces of the same kind, each in pieces again.
std::string nested_pieces(char kind, std::size_t levels) {
  return "\xa1" + std::string("\x61k") + std::string(levels, kind) + std::string(levels, '\xff');
}

TEST(TraceReaderTest, TextsInPiecesAreNotNested) {
  for (const char kind : {'\x7f', '\x5f'}) {
    for (const std::size_t levels : {2U, 40'000U, 4'000'000U}) {
      EXPECT_ERROR(ValueError, read_trace(nested_pieces(kind, levels), "f"), "a text in pieces has a piece");
      EXPECT_ERROR(ValueError, read_trace("\xa1" + std::string(levels, kind), "f"), "a text in pieces has a piece");
    }
  }
  // In pieces as such it may be, also as a key.
  const auto version = std::string("\x7f\x63ver\x64sion\xff", 11);
  EXPECT_ERROR(ValueError, read_trace("\xa1" + version + "\x7f\x61\x33\x62.0\xff", "f"), "version 3.0");
  EXPECT_EQ(read_trace("\xa1" + version + "\x7f\x61\x32\x62.5\xff", "f7").rank, 7);
}

TEST(TraceReaderTest, MalformedStructureIsRefused) {
  const auto refuse = [](std::string_view bytes) {
    EXPECT_ERROR(ValueError, read_trace(bytes, "f"), "cut off or malformed");
  };
  refuse("\xa1");
  refuse("\xa1\x61");
  refuse("\xbf\x61k\x01");                                                        // no end
  refuse(std::string_view("\xa1\x61k\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", 12));  // a list of 2^63 items
  refuse("\xbb\xff\xff\xff\xff\xff\xff\xff\xff");                                 // a map of 2^64 items
  refuse("\xa1\x61k\x7b\xff\xff\xff\xff\xff\xff\xff\xff");                        // a text of 2^64 bytes
  refuse("\xa1\x61k\x1c");                                                        // a reserved length
  refuse("\xa1\x61k\xff");                                                        // an end of nothing
}

TEST(TraceReaderTest, TextsAreFitForATerminal) {
  const auto dump =
      read_trace("{\"version\": \"2.10\", \"reason\": \"\\u001b[31m" + std::string(1000, 'x') + "\"}", "f0");
  EXPECT_THAT(dump.reason, testing::StartsWith("?[31mx"));
  EXPECT_LE(dump.reason.size(), 256U);
}

TEST(TraceReaderTest, MissingFileIsAnError) {
  EXPECT_ERROR(Error, trace::read_trace_file("/nowhere/trace_0"), "No such file");
  EXPECT_ERROR(Error, trace::read_trace_file("/"), "is not a regular file");
}

}  // namespace
}  // namespace cohort::test
