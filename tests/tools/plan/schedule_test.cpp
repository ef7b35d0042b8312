// SPDX-License-Identifier: BSD-3-Clause
//
// Schedules of small steps, worked by hand, and how steps change with the number of ranks and the size of buckets.
#include "plan/schedule.h"

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "made_steps.h"
#include "plan/forecast.h"
#include "support/expect_error.h"

namespace cohort::plan {
namespace {

using test::data_parallel_step;
using test::made_group;
using test::MadeStep;

constexpr double ms = 1e-3;
constexpr double tiny = 1e-9;

/// An all_reduce of a megabyte takes `milliseconds`, however many ranks there are: bytes alone count, and a tree of 2.
Cluster megabyte_takes(double milliseconds, double overlap = 1) {
  return {.intra = {.alpha = 0, .beta = milliseconds * ms / 1e6}, .algorithm = Algorithm::tree, .overlap = overlap};
}

TEST(Schedules, HideWhatIsDoneBeforeItIsAwaited) {
  // Computing: 4 ms, and 0.5 after the waits. The collectives begin at 2, 3 and 4 ms and take half a ms each.
  const auto found = predict(model_of(data_parallel_step(2).done()), megabyte_takes(0.5));
  EXPECT_NEAR(found.step, 5 * ms, tiny);
  EXPECT_NEAR(found.compute, 4.5 * ms, tiny);
  EXPECT_NEAR(found.communication, 1.5 * ms, tiny);
  EXPECT_NEAR(found.exposed, 0.5 * ms, tiny);  // the last one
  EXPECT_NEAR(found.hidden(), 2.0 / 3, tiny);
  EXPECT_THAT(found.groups, testing::ElementsAre(testing::DoubleNear(1.5 * ms, tiny)));
}

TEST(Schedules, QueueTheCollectivesOfAGroup) {
  // Each takes 2 ms: from 2 to 4, 4 to 6, 6 to 8.
  const auto found = predict(model_of(data_parallel_step(2).done()), megabyte_takes(2));
  EXPECT_NEAR(found.step, 8.5 * ms, tiny);
  EXPECT_NEAR(found.exposed, 4 * ms, tiny);
}

TEST(Schedules, DifferentGroupsDoNotWaitForEachOther) {
  MadeStep step({made_group("a", 0, 1, 2), made_group("b", 0, 2, 2)});
  step.compute(1'000'000)
      .collective("all_reduce", 1'000'000, true, 0, 0)
      .collective("all_reduce", 1'000'000, true, 0, 1);
  step.wait(0).wait(1);
  EXPECT_NEAR(predict(model_of(step.done()), megabyte_takes(3)).step, 4 * ms, tiny);
}

TEST(Schedules, BlockingCollectivesHoldTheRankUp) {
  MadeStep step({made_group("a", 0, 1, 2)});
  // What the blocking collective and the wait took when they were recorded does not count.
  step.compute(1'000'000).collective("all_reduce", 1'000'000, false, 7'000'000).compute(1'000'000);
  step.collective("all_reduce", 1'000'000, true, 100'000).wait(1, 9'000'000);
  const auto found = predict(model_of(step.done()), megabyte_takes(3));
  EXPECT_NEAR(found.compute, 2.1 * ms, tiny);
  EXPECT_NEAR(found.step, 1 * ms + 3 * ms + 1 * ms + 0.1 * ms + 3 * ms, tiny);
}

TEST(Schedules, WhatIsNeverAwaitedEndsTheStep) {
  MadeStep step({made_group("a", 0, 1, 2)});
  step.collective("all_reduce", 1'000'000, true).compute(1'000'000);
  EXPECT_NEAR(predict(model_of(step.done()), megabyte_takes(3)).step, 3 * ms, tiny);
}

TEST(Schedules, WithoutOverlapCommunicationIsAdded) {
  const auto model = model_of(data_parallel_step(2).done());
  const auto none = predict(model, megabyte_takes(0.5, 0));
  EXPECT_NEAR(none.step, none.compute + none.communication, tiny);
  EXPECT_NEAR(none.hidden(), 0, tiny);
  // With half of it, half a millisecond of communication holds computing up for a quarter; the last one is awaited.
  EXPECT_NEAR(predict(model, megabyte_takes(0.5, 0.5)).step, 5 * ms + 2 * 0.25 * ms, tiny);
}

TEST(Schedules, ComputingIsScaled) {
  const auto found = predict(model_of(data_parallel_step(2).done()), megabyte_takes(0.5), 10);
  EXPECT_NEAR(found.compute, 45 * ms, tiny);
  EXPECT_NEAR(found.step, 45.5 * ms, tiny);
}

TEST(Schedules, OneRankOnlyComputes) {
  const auto found = predict(model_of(data_parallel_step(1).done()), megabyte_takes(1000));
  EXPECT_NEAR(found.step, 4.5 * ms, tiny);
  EXPECT_EQ(found.communication, 0);
}

TEST(Schedules, AStepWithoutTimesOnlyCommunicates) {
  const auto model = model_of(data_parallel_step(2).without_times());
  EXPECT_FALSE(model.has_times);
  const auto found = predict(model, megabyte_takes(2));
  EXPECT_NEAR(found.step, 6 * ms, tiny);
  EXPECT_EQ(found.compute, 0);
}

TEST(Schedules, AreNeverShorterThanTheirParts) {
  const auto model = model_of(data_parallel_step(8).done());
  double last = 0;
  for (double milliseconds = 0.001; milliseconds < 1000; milliseconds *= 2) {
    for (const double overlap : {0.0, 0.3, 1.0}) {
      const auto found = predict(model, megabyte_takes(milliseconds, overlap));
      EXPECT_GE(found.step, found.compute - tiny);
      EXPECT_GE(found.step, found.communication - tiny);
      EXPECT_LE(found.step, found.compute + found.communication + tiny);
    }
    const auto found = predict(model, megabyte_takes(milliseconds));
    EXPECT_GE(found.step, last);
    last = found.step;
  }
}

TEST(StepModels, FindTheCollectiveOfEachWait) {
  MadeStep step({made_group("a", 0, 1, 2)});
  step.collective("cohort::all_gather_into_tensor", 8, true).collective("all_reduce", 8, true).wait(1).wait(0);
  const auto model = model_of(step.done());
  ASSERT_EQ(model.events.size(), 4U);
  EXPECT_EQ(model.events[0].operation, "all_gather_single");
  EXPECT_THAT(model.events[2].awaited, testing::ElementsAre(1));
  EXPECT_THAT(model.events[3].awaited, testing::ElementsAre(0));
}

TEST(StepModels, AWaitForAnUnknownValueIsForAllInFlight) {
  MadeStep step({made_group("a", 0, 1, 2)});
  step.collective("all_reduce", 8, true).collective("all_reduce", 8, true).wait(0);
  auto recorded = step.done();
  recorded.graph.nodes.push_back({.kind = GraphNode::Kind::wait, .name = "wait"});
  recorded.timeline = {};
  EXPECT_THAT(model_of(recorded).events.back().awaited, testing::ElementsAre(1));
}

TEST(Worlds, GrowInTheOutermostDimension) {
  MadeStep step({made_group("t", 0, 1, 4, "mesh_tp"), made_group("d", 0, 4, 8, "mesh_dp"), made_group("w", 0, 1, 32)});
  for (std::size_t i = 0; i < 3; ++i) step.collective("all_reduce", 8, true, 0, i);
  const auto model = model_of(step.done());
  EXPECT_EQ(model.world(), 32);
  EXPECT_EQ(outermost_group(model), 1U);
  const auto larger = resized(model, 1, 128, Parts::shrink);
  EXPECT_EQ(larger.groups[0].ranks, 4);
  EXPECT_EQ(larger.groups[1].ranks, 32);
  EXPECT_EQ(larger.groups[1].stride, 4);
  EXPECT_EQ(larger.groups[2].ranks, 128);
  const auto wider = resized(model, 0, 64, Parts::shrink);
  EXPECT_EQ(wider.groups[0].ranks, 8);
  EXPECT_EQ(wider.groups[1].ranks, 8);
  EXPECT_EQ(wider.groups[1].stride, 8);
  EXPECT_EQ(wider.groups[2].ranks, 64);
  EXPECT_EQ(resized(model, 1, 4, Parts::shrink).groups[1].ranks, 1);
  EXPECT_ERROR(ValueError, resized(model, 1, 30, Parts::shrink), "the world is a multiple of 4");
}

TEST(Worlds, BytesOfPartsStayOrGrow) {
  MadeStep step({made_group("d", 0, 1, 4)});
  step.collective("all_reduce", 400, true).collective("all_gather", 400, true).collective("reduce_scatter", 400, true);
  const auto model = model_of(step.done());
  const auto bytes = [&](Parts parts) {
    std::vector<std::size_t> found;
    for (const auto& each : resized(model, 0, 16, parts).events) found.push_back(each.bytes);
    return found;
  };
  EXPECT_THAT(bytes(Parts::shrink), testing::ElementsAre(400, 400, 400));
  EXPECT_THAT(bytes(Parts::stay), testing::ElementsAre(400, 1600, 1600));
}

TEST(Buckets, AreFilledUntilTheyHaveTheirBytes) {
  const auto model = model_of(data_parallel_step(2).done());
  const auto sizes = [&](std::size_t bytes) {
    std::vector<std::size_t> found;
    for (const auto& each : with_buckets(model, bytes).events) {
      if (each.kind == StepEvent::Kind::collective) found.push_back(each.bytes);
    }
    return found;
  };
  EXPECT_THAT(sizes(1), testing::ElementsAre(1'000'000, 1'000'000, 1'000'000));
  EXPECT_THAT(sizes(1'000'001), testing::ElementsAre(2'000'000, 1'000'000));
  EXPECT_THAT(sizes(1U << 30U), testing::ElementsAre(3'000'000));
}

TEST(Buckets, StartWithTheirLastPart) {
  const auto model = model_of(data_parallel_step(2).done());
  // All three at 4 ms: 3 * 0.5 ms are exposed.
  EXPECT_NEAR(predict(with_buckets(model, 1U << 30U), megabyte_takes(0.5)).step, 6 * ms, tiny);
  EXPECT_NEAR(predict(with_buckets(model, 1), megabyte_takes(0.5)).step, 5 * ms, tiny);
}

TEST(Buckets, ABlockingLastOneBelongsToThem) {
  MadeStep step({made_group("a", 0, 1, 2)});
  step.collective("all_reduce", 10, true).compute(1'000'000).collective("all_reduce", 20, false).wait(0);
  step.collective("all_reduce", 40, false);  // of something else
  const auto model = model_of(step.done());
  EXPECT_EQ(bucket_bytes(model).all, 30U);
  EXPECT_EQ(bucket_bytes(model).smallest, 10U);
  const auto merged = with_buckets(model, 1000);
  ASSERT_EQ(merged.events.size(), 5U);
  EXPECT_EQ(merged.events[0].kind, StepEvent::Kind::compute);
  EXPECT_EQ(merged.events[2].bytes, 30U);
  EXPECT_FALSE(merged.events[2].is_async);
  EXPECT_THAT(merged.events[3].awaited, testing::ElementsAre(merged.events[2].collective));
  EXPECT_EQ(merged.events[4].bytes, 40U);
}

TEST(Buckets, TheLastOneMayComeAfterTheWaitForTheOthers) {
  // As DDP does it: computing until 2 ms, then both of them in one bucket of 2 MB.
  MadeStep step({made_group("a", 0, 1, 2)});
  step.compute(1'000'000).collective("all_reduce", 1'000'000, true).compute(1'000'000).wait(0);
  step.collective("all_reduce", 1'000'000, false).compute(500'000).collective("all_reduce", 8, false);
  const auto model = model_of(step.done());
  EXPECT_EQ(bucket_bytes(model).all, 2'000'000U);
  EXPECT_NEAR(predict(with_buckets(model, 1), megabyte_takes(3)).step, 1 * ms + 3 * ms + 3 * ms + 0.5 * ms, 1e-7);
  EXPECT_NEAR(predict(with_buckets(model, 1'500'000), megabyte_takes(3)).step, 2 * ms + 6 * ms + 0.5 * ms, 1e-7);
}

TEST(Buckets, EndWhereAPartIsAwaitedOrAnotherKindComes) {
  MadeStep step({made_group("a", 0, 1, 2)});
  step.collective("all_reduce", 10, true).wait(0).collective("all_reduce", 10, true);
  step.collective("all_gather", 10, true).collective("all_reduce", 10, true);
  const auto merged = with_buckets(model_of(step.done()), 1000);
  std::vector<std::size_t> sizes;
  for (const auto& each : merged.events) {
    if (each.kind == StepEvent::Kind::collective) sizes.push_back(each.bytes);
  }
  EXPECT_THAT(sizes, testing::ElementsAre(10, 10, 10, 10));
}

TEST(Forecasts, FindTheBestBucket) {
  const auto model = model_of(data_parallel_step(2).done());
  EXPECT_EQ(bucket_bytes(model).all, 3'000'000U);
  // Latency alone: one collective is best. Bandwidth alone: the smallest are.
  const Cluster latency{.intra = {.alpha = 10 * ms, .beta = 1e-18}};
  const auto few = forecast(model, latency, {.worlds = {2, 4}, .buckets = {1, 3'000'000}});
  ASSERT_EQ(few.size(), 2U);
  EXPECT_EQ(few[0].best()->bytes, 3'000'000U);
  EXPECT_GT(few[1].as_recorded.step, few[0].as_recorded.step);
  const auto many = forecast(model, megabyte_takes(0.5), {.worlds = {2}, .buckets = {1, 3'000'000}});
  EXPECT_EQ(many[0].best()->bytes, 1U);
  // The defaults reach from the smallest recorded bucket to all gradients together.
  const auto usual = forecast(model, latency, {});
  EXPECT_EQ(usual.front().world, 2);
  EXPECT_EQ(usual.front().buckets.back().bytes, 3'000'000U);
  EXPECT_EQ(forecast(model_of(data_parallel_step(2).without_times()), latency, {}).front().best(), nullptr);
}

TEST(Forecasts, EndHoweverLargeAStepIs) {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  const auto far_apart = made_group("f", 0, 1 << 20, 1 << 10);
  const auto model = model_of(MadeStep({far_apart}).compute(1).collective("all_reduce", most, true).wait(0).done());
  const auto found = forecast(model, {.intra = {.alpha = 1, .beta = 1}}, {});
  ASSERT_EQ(found.size(), 1U) << "no doubles of so many ranks";
  EXPECT_EQ(found.front().world, 1 << 30);
  EXPECT_LT(found.front().buckets.size(), 64U);
  EXPECT_EQ(found.front().buckets.back().bytes, most);
}

}  // namespace
}  // namespace cohort::plan
