// SPDX-License-Identifier: BSD-3-Clause
//
// What the flight recorder records about a group's operations. Each test runs in a process of its own, because there is
// one recorder per process.
#include <cohort/flight_recorder.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <mutex>
#include <string>
#include <vector>

#include "group/breakable_ranks.h"
#include "group/gate.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

void in_process(const std::function<void()>& body) {
  Process child([&] {
    FlightRecorder::reset_all();  // hides what the parent has recorded
    body();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

json entries(const DumpOptions& options = {}) {
  const auto dump = json::parse(FlightRecorder::dump_json(options));
  return dump.contains("entries") ? dump["entries"] : json::array();
}

TEST(RecordedOperations, QueuedOnesAreThere) {
  in_process([] {
    const GatedGroup gated;
    std::vector<int> x(5);
    std::vector<Work> works;
    for (int i = 0; i < 3; ++i) works.push_back(gated.group->all_reduce(x, {.async_op = true}));
    gated.gate().await_arrivals(1);
    const auto active = entries({.only_active = true});
    gated.gate().open();
    ASSERT_EQ(active.size(), 3U) << "whoever reads the dump of a job that hangs wants to see what waits";
    EXPECT_EQ(active[0]["state"], "started");
    EXPECT_EQ(active[1]["state"], "scheduled");
    EXPECT_EQ(active[2]["collective_seq_id"], 3);
    gated.group->wait_for_pending();
    EXPECT_TRUE(entries({.only_active = true}).empty());
    EXPECT_EQ(entries().size(), 3U);
  });
}

TEST(RecordedOperations, CarryWhatWasCalled) {
  in_process([] {
    with_threads(2, [](const ProcessGroupPtr& group) {
      group->set_group_desc("data parallel");
      std::vector<float> x(6);
      group->all_reduce(Buffer(x.data(), DType::f32, {2, 3}), {.timeout = 7s});
      if (group->rank() == 0) group->send(x, 1);
      if (group->rank() == 1) group->recv(x, 0);
    });
    int sends = 0;
    int reductions = 0;
    for (const auto& entry : entries()) {
      EXPECT_EQ(entry["state"], "completed");
      EXPECT_EQ(entry["process_group"][1], "data parallel");
      const std::string name = entry["profiling_name"];
      if (name == "thread:all_reduce") {
        ++reductions;
        EXPECT_EQ(entry["output_sizes"], json::parse("[[2, 3]]"));
        EXPECT_EQ(entry["timeout_ms"], 7000);
        EXPECT_EQ(entry["collective_seq_id"], 1);
        EXPECT_EQ(entry["is_p2p"], false);
      } else if (name.find("send") != std::string::npos) {
        ++sends;
        EXPECT_EQ(entry["is_p2p"], true);
        EXPECT_EQ(entry["p2p_seq_id"], 1);
      }
    }
    EXPECT_EQ(reductions, 2);
    EXPECT_EQ(sends, 1);
  });
}

TEST(RecordedOperations, ResetWithOperationsInFlight) {
  in_process([] {
    const GatedGroup gated;
    std::vector<int> x(5);
    const auto old = gated.group->all_reduce(x, {.async_op = true});
    gated.gate().await_arrivals(1);
    FlightRecorder::reset_all();
    EXPECT_TRUE(entries().empty());
    gated.gate().open();
    old.wait();
    gated.group->barrier();
    const auto now = entries();
    ASSERT_EQ(now.size(), 1U) << "the end of a hidden one brings it not back";
    EXPECT_EQ(now[0]["profiling_name"], "gated:barrier");
    EXPECT_EQ(now[0]["record_id"], 0);
    EXPECT_EQ(now[0]["collective_seq_id"], 2);
  });
}

TEST(RecordedOperations, ATimeoutMakesADump) {
  in_process([] {
    std::mutex mutex;
    std::vector<std::string> dumps;
    FlightRecorder::set_writer([&](std::string_view bytes, int) {
      const std::lock_guard lock(mutex);
      dumps.emplace_back(bytes);
    });
    run_breakable(threads(2), [](const ProcessGroupPtr& group) {
      std::vector<int> x(5);
      if (group->rank() == 0) {
        EXPECT_THROW(group->all_reduce(x, {.timeout = 50ms}), OperationTimeoutError);
        EXPECT_THROW(group->all_reduce(x), OperationTimeoutError);
        EXPECT_THROW(group->broadcast(x, {.root = 7}), ValueError);
      }
      meet(group, "end");
    });
    FlightRecorder::set_writer(nullptr);
    ASSERT_EQ(dumps.size(), 1U) << "one for each group that breaks";
    EXPECT_THAT(dumps[0], ::testing::HasSubstr("missing: rank 1"));
  });
}

}  // namespace
}  // namespace cohort::test
