// SPDX-License-Identifier: BSD-3-Clause
//
// Replays that are measured, and recorded steps that are saved.
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/recorded_step.h>
#include <cohort/torch/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "support/temporary.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using ::testing::ElementsAre;

constexpr int recordings = 2;

TEST(MeasuredReplays, NoteTheTimesOfAllNodes) {
  at::set_num_threads(1);
  auto step = capture([](const at::Tensor& x) { return at::mm(x, x).relu().sum(); });
  EXPECT_ERROR(Error, step.timeline(), "has not been called yet");
  const auto x = at::ones({64, 64});
  const auto expected = at::mm(x, x).relu().sum();
  for (int i = 0; i < recordings + 2; ++i) step(x);
  EXPECT_TRUE(step.timeline().replays.empty());

  step.measure(3);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(step(x), expected));
  const auto& replays = step.timeline().replays;
  ASSERT_EQ(replays.size(), 3U);
  for (const auto& replay : replays) {
    ASSERT_EQ(replay.nodes.size(), step.graph().nodes.size());
    std::int64_t last = 0;
    for (const auto& each : replay.nodes) {
      EXPECT_EQ(each.begin, last);
      EXPECT_GE(each.end, each.begin);
      EXPECT_EQ(each.completed, -1);
      last = each.end;
    }
    EXPECT_GE(replay.end, last);
    EXPECT_GT(last, 0);
  }

  step.measure(1);
  EXPECT_TRUE(step.timeline().replays.empty());
  step(x);
  EXPECT_EQ(step.timeline().replays.size(), 1U);
}

TEST(MeasuredReplays, BelongToTheirRecording) {
  auto step = capture([](const at::Tensor& x) { return x + 1; });
  for (int i = 0; i < recordings; ++i) step(at::ones({2}));
  step.measure(10);
  step(at::ones({2}));
  EXPECT_EQ(step.timeline().replays.size(), 1U);
  step(at::ones({3}));  // is recorded, not replayed
  EXPECT_TRUE(step.timeline().replays.empty());
  step(at::ones({2}));
  EXPECT_EQ(step.timeline().replays.size(), 2U);
}

const NodeTime* time_of(const Graph& graph, const ReplayTimes& replay, GraphNode::Kind kind) {
  const auto nodes = all_nodes(graph);
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const GraphNode* each) { return each->kind == kind; });
  return found == nodes.end() ? nullptr : &replay.nodes[static_cast<std::size_t>(found - nodes.begin())];
}

TEST(MeasuredReplays, NoteWhenAsynchronousCollectivesAreComplete) {
  for (const int ranks : {1, 2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      auto step = capture([&](const at::Tensor& x) {
        auto y = x * 2;
        const auto work = group->all_reduce(y, {.async_op = true});
        const auto z = x + 1;
        work.wait();
        return y + z;
      });
      const auto x = at::ones({16});
      for (int i = 0; i < recordings; ++i) step(x);
      step.measure(4);
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(step(x), x * (2 * group->size()) + (x + 1)));
      ASSERT_EQ(step.timeline().replays.size(), 4U);
      for (const auto& replay : step.timeline().replays) {
        const auto* const collective = time_of(step.graph(), replay, GraphNode::Kind::collective);
        const auto* const wait = time_of(step.graph(), replay, GraphNode::Kind::wait);
        ASSERT_NE(collective, nullptr) << step.graph();
        ASSERT_NE(wait, nullptr) << step.graph();
        EXPECT_GE(collective->completed, collective->begin);
        EXPECT_GE(wait->begin, collective->end);
      }
    });
  }
}

TEST(MeasuredReplays, NoteTheWaitsForFunctionalCollectives) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto step = capture([&](const at::Tensor& x) { return functional::all_reduce(x, "sum", group) + 1; });
    const auto x = at::ones({16});
    for (int i = 0; i < recordings; ++i) step(x);
    step.measure(1);
    EXPECT_TRUE(at::equal(step(x), x * 2 + 1));
    const auto& replay = step.timeline().replays.at(0);
    const auto* const collective = time_of(step.graph(), replay, GraphNode::Kind::collective);
    const auto* const wait = time_of(step.graph(), replay, GraphNode::Kind::wait);
    ASSERT_NE(collective, nullptr) << step.graph();
    ASSERT_NE(wait, nullptr) << step.graph();
    EXPECT_GE(wait->begin, collective->end);
  });
}

TEST(RecordedStep, HasGraphTimelineAndTheGroupsOfMeshDimensions) {
  // Rank 5 of a mesh of 2 x 4, without peers.
  const auto world = new_group("fake", std::chrono::seconds(5), "cpu", {},
                               {.store = std::make_shared<HashStore>(), .rank = 5, .size = 8});
  const auto mesh = init_device_mesh("cpu", {2, 4}, {"dp", "tp"}, {.process_group = world});
  auto step = capture([&](const at::Tensor& x) {
    const auto sum = functional::all_reduce(x, "sum", mesh.group("dp"));
    return DTensor::from_local(sum, mesh["tp"], {Shard(0)}).redistribute({Replicate()}).to_local();
  });
  for (int i = 0; i < recordings; ++i) step(at::ones({2}));
  step.measure(2);
  for (int i = 0; i < 2; ++i) step(at::ones({2}));

  const auto& graph = step.graph();
  ASSERT_EQ(graph.groups.size(), 2U) << graph;
  EXPECT_EQ(graph.groups[0].label, "mesh_dp");
  EXPECT_EQ(graph.groups[0].id, mesh.group("dp")->id());
  EXPECT_THAT(graph.groups[0].ranks, ElementsAre(1, 5));
  EXPECT_EQ(graph.groups[1].label, "mesh_tp");
  EXPECT_THAT(graph.groups[1].ranks, ElementsAre(4, 5, 6, 7));

  const TemporaryFolder folder;
  save_step(folder / "a.step", step.recorded());
  const auto loaded = load_step(folder / "a.step");
  EXPECT_EQ(loaded.graph, graph);
  EXPECT_EQ(loaded.timeline, step.timeline());
  EXPECT_EQ(loaded.timeline.replays.size(), 2U);
}

}  // namespace
}  // namespace cohort::test
