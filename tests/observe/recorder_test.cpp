// SPDX-License-Identifier: BSD-3-Clause
//
// Tests recorders with rings of their own, so that sizes and overlaps can be chosen.
#include "observe/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "observe/dump.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using nlohmann::json;
using namespace observe;
using testing::ElementsAre;

GroupInfo group_info(const std::string& id = "g") {
  return {.id = id,
          .name = "mine",
          .description = "a group",
          .backend = "shm",
          .global_ranks = {4, 5},
          .rank = 1,
          .size = 2};
}

json dump_of(Recorder& recorder, const DumpOptions& options = {}) {
  return make_dump(recorder.snapshot(), 5, options);
}

std::vector<std::int64_t> sequences(const json& dump) {
  std::vector<std::int64_t> result;
  for (const auto& entry : dump.value("entries", json::array())) result.push_back(entry.at("collective_seq_id"));
  return result;
}

std::vector<std::int64_t> record_ids(const json& dump) {
  std::vector<std::int64_t> result;
  for (const auto& entry : dump.value("entries", json::array())) result.push_back(entry.at("record_id"));
  return result;
}

TEST(FlightRecorderTest, RingKeepsTheNewestInOrder) {
  for (const std::size_t capacity : {1U, 2U, 5U, 8U}) {
    Recorder recorder({.capacity = capacity});
    GroupTrace group(group_info(), recorder);
    for (int i = 0; i < 20; ++i) group.completed(group.begin({.op = "barrier", .collective_sequence = i}));
    std::vector<std::int64_t> newest;
    for (int i = 20 - static_cast<int>(capacity); i < 20; ++i) newest.push_back(i);
    const auto dump = dump_of(recorder);
    EXPECT_EQ(sequences(dump), newest);
    EXPECT_EQ(record_ids(dump), newest);
    EXPECT_EQ(recorder.size(), capacity);
  }
}

TEST(FlightRecorderTest, ZeroKeepsNothingButTheStatus) {
  Recorder recorder({.capacity = 0});
  GroupTrace group(group_info(), recorder);
  group.completed(group.begin({.op = "barrier", .collective_sequence = 3}));
  const auto dump = dump_of(recorder);
  EXPECT_FALSE(dump.contains("entries"));
  EXPECT_EQ(dump["pg_status"]["0"]["last_completed_collective"], 3);
}

TEST(FlightRecorderTest, EntriesHaveEveryField) {
  Recorder recorder({});
  GroupTrace group(group_info(), recorder);
  const auto before = std::chrono::system_clock::now();
  const std::vector<std::int64_t> sizes{2, 3};
  const auto id = group.begin({.op = "all_reduce",
                               .collective_sequence = 17,
                               .p2p_sequence = 2,
                               .op_id = 19,
                               .input = {DType::f32, 1, 6, sizes},
                               .output = {DType::bf16, 1, 6, sizes},
                               .timeout_ms = 1500});
  group.started(id);
  group.completed(id);
  const auto dump = dump_of(recorder);
  const auto after = std::chrono::system_clock::now();

  ASSERT_EQ(dump.at("entries").size(), 1U);
  const auto& entry = dump["entries"][0];
  EXPECT_EQ(entry.at("record_id"), 0);
  EXPECT_EQ(entry.at("pg_id"), 0);
  EXPECT_EQ(entry.at("process_group"), json::array({"g", "a group"}));
  EXPECT_EQ(entry.at("collective_seq_id"), 17);
  EXPECT_EQ(entry.at("p2p_seq_id"), 2);
  EXPECT_EQ(entry.at("op_id"), 19);
  EXPECT_EQ(entry.at("profiling_name"), "shm:all_reduce");
  EXPECT_EQ(entry.at("input_sizes"), json::parse("[[2, 3]]"));
  EXPECT_EQ(entry.at("input_dtypes"), json::array({"f32"}));
  EXPECT_EQ(entry.at("output_sizes"), json::parse("[[2, 3]]"));
  EXPECT_EQ(entry.at("output_dtypes"), json::array({"bf16"}));
  EXPECT_EQ(entry.at("state"), "completed");
  EXPECT_EQ(entry.at("retired"), true);
  EXPECT_EQ(entry.at("timeout_ms"), 1500);
  EXPECT_EQ(entry.at("is_p2p"), false);
  EXPECT_EQ(entry.at("thread_id"), std::to_string(::gettid()));
  EXPECT_FALSE(entry.at("thread_name").get<std::string>().empty());
  EXPECT_EQ(entry.at("frames"), json::array());
  EXPECT_GE(entry.at("duration_ms").get<double>(), 0.0);

  const auto ns = [](auto time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  const auto created = entry.at("time_created_ns").get<std::int64_t>();
  const auto started = entry.at("time_discovered_started_ns").get<std::int64_t>();
  const auto completed = entry.at("time_discovered_completed_ns").get<std::int64_t>();
  constexpr std::int64_t slack = 1'000'000;
  EXPECT_GE(created, ns(before) - slack);
  EXPECT_LE(created, started);
  EXPECT_LE(started, completed);
  EXPECT_LE(completed, ns(after) + slack);

  EXPECT_EQ(dump.at("version"), "2.10");
  EXPECT_EQ(dump.at("rank"), 5);
  EXPECT_EQ(dump.at("pg_config").at("g").at("name"), "mine");
  EXPECT_EQ(dump.at("pg_config").at("g").at("desc"), "a group");
  EXPECT_EQ(dump.at("pg_config").at("g").at("ranks"), "[4, 5]");
}

TEST(FlightRecorderTest, BuffersAreSummedUp) {
  Recorder recorder({});
  GroupTrace group(group_info(), recorder);
  const std::vector<float> four(4);
  const std::vector<float> three(3);
  const std::vector<ConstBuffer> even{four, four, four};
  const std::vector<ConstBuffer> uneven{four, three};
  const std::vector<std::int64_t> deep{2, 3, 4, 5, 6};
  group.begin({.op = "all_gather", .input = Shape::of(ConstBuffer(four)), .output = Shape::of_all(even)});
  group.begin({.op = "all_gather", .output = Shape::of_all(uneven)});
  group.begin({.op = "all_reduce", .input = {DType::u8, 1, 720, deep}});
  const auto dump = dump_of(recorder);
  const auto& entries = dump.at("entries");
  EXPECT_EQ(entries[0]["output_sizes"], json::parse("[[4], [4], [4]]"));
  EXPECT_EQ(entries[0]["output_dtypes"], json::parse(R"(["f32", "f32", "f32"])"));
  EXPECT_EQ(entries[1]["output_sizes"], json::parse("[[4], [3]]"));
  EXPECT_EQ(entries[1]["input_sizes"], json::array());
  EXPECT_EQ(entries[2]["input_sizes"], json::parse("[[2, 3, 4, 30]]"));
}

TEST(FlightRecorderTest, PointToPointNamesThePeer) {
  Recorder recorder({});
  GroupTrace group(group_info(), recorder);
  group.begin({.op = "send", .is_p2p = true, .p2p_sequence = 1, .peer = 0});
  group.begin({.op = "recv", .is_p2p = true, .p2p_sequence = 2, .peer = 0});
  group.begin({.op = "recv", .is_p2p = true, .p2p_sequence = 3});
  const auto dump = dump_of(recorder);
  EXPECT_EQ(dump["entries"][0]["profiling_name"], "shm:send 1->0");
  EXPECT_EQ(dump["entries"][1]["profiling_name"], "shm:recv 1<-0");
  EXPECT_EQ(dump["entries"][2]["profiling_name"], "shm:recv 1<-any");
  // Point-to-point operations do not count as collectives of the group.
  EXPECT_EQ(dump["pg_status"]["0"]["last_enqueued_collective"], -1);
}

TEST(FlightRecorderTest, StatesFollowTheOperation) {
  Recorder recorder({});
  GroupTrace group(group_info(), recorder);
  EXPECT_EQ(group.last_enqueued().sequence, -1);
  EXPECT_EQ(group.last_enqueued().elements, -1);
  const std::vector<std::int64_t> sizes{8};
  const Shape shape{DType::f32, 1, 8, sizes};
  group.begin({.op = "broadcast", .collective_sequence = 1, .input = shape});
  const auto started = group.begin({.op = "reduce", .collective_sequence = 2, .input = shape});
  group.started(started);
  const auto failed = group.begin({.op = "gather", .starts_at_once = true, .collective_sequence = 3, .input = shape});
  group.failed(failed);
  const auto done = group.begin({.op = "scatter", .collective_sequence = 4, .output = shape});
  group.completed(done);

  auto dump = dump_of(recorder);
  const auto at = [&dump](std::size_t i, const char* key) { return dump["entries"][i][key]; };
  EXPECT_EQ(at(0, "state"), "scheduled");
  EXPECT_EQ(at(0, "time_discovered_started_ns"), 0);
  EXPECT_EQ(at(0, "retired"), false);
  EXPECT_EQ(at(1, "state"), "started");
  EXPECT_EQ(at(1, "time_discovered_completed_ns"), 0);
  EXPECT_EQ(at(1, "retired"), false);
  EXPECT_EQ(at(2, "state"), "started");
  EXPECT_EQ(at(2, "retired"), true);
  EXPECT_FALSE(dump["entries"][2].contains("duration_ms"));
  EXPECT_EQ(at(3, "state"), "completed");
  EXPECT_EQ(at(3, "retired"), true);

  EXPECT_EQ(group.last_enqueued().sequence, 4);
  EXPECT_EQ(group.last_started().sequence, 3);
  EXPECT_STREQ(group.last_started().op, "gather");
  EXPECT_EQ(group.last_completed().sequence, 4);
  EXPECT_STREQ(group.last_completed().op, "scatter");
  EXPECT_EQ(group.last_completed().elements, 8);
  const auto& status = dump["pg_status"]["0"];
  EXPECT_EQ(status["last_enqueued_collective"], 4);
  EXPECT_EQ(status["last_started_collective"], 3);
  EXPECT_EQ(status["last_completed_collective"], 4);
  EXPECT_EQ(status["last_completed_op"], "scatter");
  EXPECT_EQ(status["last_completed_numel"], 8);

  dump = dump_of(recorder, {.only_active = true});
  EXPECT_THAT(sequences(dump), ElementsAre(1, 2, 3));
}

TEST(FlightRecorderTest, BothEncodingsSayTheSame) {
  Recorder recorder({});
  GroupTrace group(group_info(), recorder);
  for (int i = 0; i < 10; ++i) group.completed(group.begin({.op = "barrier", .collective_sequence = i}));
  const auto dump = dump_of(recorder);
  EXPECT_EQ(json::parse(encode_json(dump)), dump);
  EXPECT_EQ(json::from_cbor(encode_cbor(dump)), dump);
}

TEST(FlightRecorderTest, NothingRecordedHasNoEntries) {
  Recorder recorder({});
  EXPECT_FALSE(dump_of(recorder).contains("entries"));
}

TEST(FlightRecorderTest, ResetStartsAnEpoch) {
  Recorder recorder({.capacity = 8});
  GroupTrace group(group_info(), recorder);
  group.completed(group.begin({.op = "barrier", .collective_sequence = 1}));
  const auto in_flight = group.begin({.op = "barrier", .collective_sequence = 2});
  recorder.reset_all();
  EXPECT_FALSE(dump_of(recorder).contains("entries"));

  const auto fresh = group.begin({.op = "barrier", .collective_sequence = 3});
  group.completed(in_flight);
  auto dump = dump_of(recorder);
  EXPECT_THAT(sequences(dump), ElementsAre(3));
  EXPECT_THAT(record_ids(dump), ElementsAre(0));
  EXPECT_EQ(dump["entries"][0]["state"], "scheduled")
      << "the end of an operation of the old epoch is not the new one's";
  group.completed(fresh);
  EXPECT_EQ(dump_of(recorder)["entries"][0]["state"], "completed");
}

TEST(FlightRecorderTest, LateEndLeavesTheNewOccupantAlone) {
  Recorder recorder({.capacity = 4});
  GroupTrace group(group_info(), recorder);
  const auto old = group.begin({.op = "barrier", .collective_sequence = 1});
  for (int i = 2; i <= 5; ++i) group.begin({.op = "barrier", .collective_sequence = i});  // 5 takes the slot of 1
  group.started(old);
  group.failed(old);
  group.completed(old);
  const auto dump = dump_of(recorder);
  EXPECT_THAT(sequences(dump), ElementsAre(2, 3, 4, 5));
  for (const auto& entry : dump["entries"]) EXPECT_EQ(entry["state"], "scheduled");
  for (const auto& entry : dump["entries"]) EXPECT_EQ(entry["retired"], false);
  EXPECT_EQ(group.last_completed().sequence, 1) << "the group's status knows nevertheless";
}

TEST(FlightRecorderTest, GroupsAreKnownWhileTheyHaveEntries) {
  Recorder recorder({.capacity = 2});
  GroupTrace stays(group_info("stays"), recorder);
  {
    GroupTrace unused(group_info("unused"), recorder);
    GroupTrace goes(group_info("goes"), recorder);
    goes.completed(goes.begin({.op = "barrier", .collective_sequence = 1}));
  }
  EXPECT_FALSE(dump_of(recorder)["pg_config"].contains("unused"));
  EXPECT_TRUE(dump_of(recorder)["pg_config"].contains("goes"));
  EXPECT_EQ(dump_of(recorder)["entries"][0]["process_group"][0], "goes");
  stays.begin({.op = "barrier", .collective_sequence = 1});
  EXPECT_TRUE(dump_of(recorder)["pg_config"].contains("goes"));
  stays.begin({.op = "barrier", .collective_sequence = 2});
  EXPECT_FALSE(dump_of(recorder)["pg_config"].contains("goes"));
  EXPECT_TRUE(dump_of(recorder)["pg_config"].contains("stays"));
}

TEST(FlightRecorderTest, GroupsGetTheirNamesLater) {
  Recorder recorder({});
  GroupTrace group({.id = "7f", .backend = "shm", .size = 2}, recorder);
  EXPECT_EQ(dump_of(recorder)["pg_config"]["7f"]["name"], "7f");
  EXPECT_EQ(dump_of(recorder)["pg_config"]["7f"]["ranks"], "[0, 1]");
  group.set_name("data parallel");
  group.set_description("all of them");
  EXPECT_EQ(dump_of(recorder)["pg_config"]["7f"]["name"], "data parallel");
  EXPECT_EQ(dump_of(recorder)["pg_config"]["7f"]["desc"], "all of them");
}

TEST(FlightRecorderTest, StacksAreRecordedOnRequest) {
  Recorder recorder({.capacity = 4, .stacks = true});
  GroupTrace group(group_info(), recorder);
  group.begin({.op = "barrier"});
  EXPECT_GT(dump_of(recorder)["entries"][0]["frames"].size(), 2U);
  EXPECT_FALSE(dump_of(recorder)["entries"][0]["frames"][0]["filename"].get<std::string>().empty());
  EXPECT_EQ(dump_of(recorder, {.stacks = false})["entries"][0]["frames"], json::array());
}

/// All fields of a record are derived from one number, so that a mixture of two records is detected.
Event event_of(std::int64_t number, const std::vector<std::int64_t>& sizes) {
  return {.op = "all_reduce",
          .starts_at_once = true,
          .collective_sequence = number,
          .p2p_sequence = number * 3,
          .op_id = number * 5,
          .input = {DType::f32, 2, sizes[0] * sizes[1] * 2, sizes},
          .output = {DType::f32, 2, sizes[0] * sizes[1] * 2, sizes},
          .timeout_ms = number % 1000};
}

void expect_whole(const Record& record) {
  const auto number = record.collective_sequence;
  ASSERT_EQ(record.p2p_sequence, number * 3);
  ASSERT_EQ(record.op_id, number * 5);
  ASSERT_EQ(record.timeout_ms, static_cast<std::uint32_t>(number % 1000));
  ASSERT_EQ(record.input.sizes[0], number);
  ASSERT_EQ(record.output.sizes[0], number);
  ASSERT_EQ(record.output.elements, number * 4);
  ASSERT_EQ(record.created, record.started);
  ASSERT_EQ(record.group, static_cast<std::uint32_t>(number));
}

TEST(FlightRecorderTest, ThreadsRecordWhileOthersRead) {
  constexpr int writers = 4;
  constexpr std::int64_t each = 100'000;
  for (const std::size_t capacity : {1U, 4U}) {  // small, so that all threads use the same slots
    Ring ring(capacity, false);
    std::atomic<int> running{writers};
    as_threads(writers + 1, [&](int thread) {
      if (thread == writers) {
        while (running.load() > 0) {
          std::uint64_t next = 0;
          for (const auto& record : ring.read(0)) {
            ASSERT_GE(record.position, next);
            next = record.position + 1;
            expect_whole(record);
          }
        }
        return;
      }
      for (std::int64_t i = 1; i <= each; ++i) {
        const auto number = i * writers + thread;
        const auto position =
            ring.write(event_of(number, {number, 2}), {ticks(), static_cast<std::uint32_t>(number), 1}, {});
        ring.note(position, i % 3 == 0 ? Stage::failed : Stage::completed, ticks());
      }
      running.fetch_sub(1);
    });
    for (const auto& record : ring.read(0)) {
      EXPECT_TRUE(record.completed != 0 || record.failed != 0) << "of operation " << record.collective_sequence;
    }
  }
}

TEST(FlightRecorderTest, ThreadsOfOneGroupLoseNothing) {
  constexpr int writers = 4;
  constexpr std::int64_t each = 1000;
  Recorder recorder({.capacity = writers * each});
  GroupTrace group(group_info(), recorder);
  as_threads(writers, [&](int thread) {
    for (std::int64_t i = 0; i < each; ++i) {
      group.completed(group.begin({.op = "barrier", .collective_sequence = thread * each + i}));
    }
  });
  auto all = sequences(dump_of(recorder));
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), static_cast<std::size_t>(writers * each));
  for (std::int64_t i = 0; i < writers * each; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
}

}  // namespace
}  // namespace cohort::test
