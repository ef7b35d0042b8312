// SPDX-License-Identifier: BSD-3-Clause
#include "trace/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "made_dumps.h"

namespace cohort::test {
namespace {

using nlohmann::json;

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

TEST(ChromeTraceTest, OperationsAreCompleteEvents) {
  MadeRank zero(0);
  MadeRank one(1);
  auto& a = zero.join("g", {0, 1}, "data");
  auto& b = one.join("g", {0, 1}, "data");
  run(a, {.op = "all_reduce", .sequence = 1});
  run(b, {.op = "all_reduce", .sequence = 1});
  run(a, {.op = "send", .sequence = 1, .peer = 1, .is_p2p = true});
  begin(b, {.op = "barrier", .sequence = 2, .sizes = {}});
  const auto trace = json::parse(trace::chrome_trace({zero.dump(), one.dump()}));
  const auto events = events_of(trace, "X");
  ASSERT_EQ(events.size(), 4U);
  for (const auto& event : events) {
    for (const auto* const key : {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"})
      EXPECT_TRUE(event.contains(key)) << key;
    EXPECT_GE(event.at("ts").get<double>(), 0.0);
    EXPECT_GE(event.at("dur").get<double>(), 0.0);
    EXPECT_EQ(event.at("args").at("group"), "data");
  }
  EXPECT_EQ(events[0].at("name"), "all_reduce");
  EXPECT_EQ(events[0].at("pid"), 0);
  EXPECT_EQ(events[0].at("args").at("call"), "all_reduce [4] f32");
  EXPECT_EQ(events[1].at("cat"), "p2p");
  EXPECT_EQ(events[1].at("args").at("peer"), 1);
  EXPECT_EQ(events[3].at("args").at("state"), "started");

  std::map<int, std::string> processes;
  std::set<std::string> tracks;
  for (const auto& event : events_of(trace, "M")) {
    if (event.at("name") == "process_name") processes[event.at("pid")] = event.at("args").at("name");
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name"));
  }
  ASSERT_EQ(processes.size(), 2U);
  EXPECT_THAT(processes[1], testing::StartsWith("rank 1"));
  EXPECT_THAT(tracks, testing::ElementsAre("data"));
}

TEST(ChromeTraceTest, OverlappingOperationsGetTracksOfTheirOwn) {
  MadeRank zero(0);
  auto& g = zero.join("g", {0, 1});
  auto& h = zero.join("h", {0, 1});
  const auto first = begin(g, {.op = "recv", .sequence = 1, .peer = 1, .is_p2p = true});
  const auto second = begin(g, {.op = "recv", .sequence = 2, .peer = 1, .is_p2p = true});
  run(h, {.sequence = 1});
  g.completed(first);
  g.completed(second);
  const auto trace = json::parse(trace::chrome_trace({zero.dump()}));
  std::map<int, double> busy_until;
  std::set<int> tracks;
  for (const auto& event : events_of(trace, "X")) {
    const int tid = event.at("tid");
    EXPECT_GE(event.at("ts").get<double>(), busy_until[tid]);
    busy_until[tid] = event.at("ts").get<double>() + event.at("dur").get<double>();
    tracks.insert(tid);
  }
  EXPECT_EQ(tracks.size(), 3U);
}

TEST(ChromeTraceTest, NothingIsAnEmptyTrace) {
  EXPECT_EQ(json::parse(trace::chrome_trace({})).at("traceEvents"), json::array());
}

}  // namespace
}  // namespace cohort::test
