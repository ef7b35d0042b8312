// SPDX-License-Identifier: BSD-3-Clause
#include "bench/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "support/expect_error.h"

namespace {

using namespace cohort::bench;
using namespace cohort::measure;
using namespace std::chrono_literals;
using cohort::DType;
using cohort::ValueError;
using testing::ElementsAre;

BenchFlags parse(const std::string& line) {
  CLI::App app;
  const auto flags = add_bench_flags(app);
  app.parse(line);
  return *flags;
}

BenchPlan plan_of(const std::string& line) {
  return make_bench_plan(parse(line));
}

TEST(BenchFlags, DefaultsAreAPlan) {
  const auto plan = plan_of("");
  EXPECT_THAT(plan.operations, ElementsAre(Operation::all_reduce));
  EXPECT_EQ(plan.sizes.front(), 4U);
  EXPECT_EQ(plan.sizes.back(), 16U << 20U);
  EXPECT_EQ(plan.command.iters, 20);
  EXPECT_EQ(plan.command.warmup, 5);
  EXPECT_EQ(plan.command.dtype, DType::f32);
  EXPECT_TRUE(plan.command.blocking);
  EXPECT_THAT(plan.memory, ElementsAre(MemoryKind::ordinary));
}

TEST(BenchFlags, OfNcclTests) {
  const auto plan = plan_of("-b 8 -e 32 -f 2 -n 7 -w 3 -m 2 -o max -d float16 -r 1 -z 0 -T 5");
  EXPECT_THAT(plan.sizes, ElementsAre(8, 16, 32));
  EXPECT_EQ(plan.command.iters, 7);
  EXPECT_EQ(plan.command.warmup, 3);
  EXPECT_EQ(plan.command.batch, 2);
  EXPECT_EQ(plan.command.reduction, Reduction::max);
  EXPECT_EQ(plan.command.dtype, DType::f16);
  EXPECT_EQ(plan.command.root, 1);
  EXPECT_FALSE(plan.command.blocking);
  EXPECT_EQ(plan.timeout, 5s);
  EXPECT_FALSE(parse("-c 0").check);
  EXPECT_EQ(parse("-N 3").run_cycles, 3);
  EXPECT_EQ(parse("-J out.json").json, "out.json");
  EXPECT_EQ(parse("--output_file out.json").json, "out.json");
}

TEST(BenchFlags, BackToBackTakesSlicesOfTime) {
  EXPECT_FALSE(plan_of("").command.back_to_back);
  EXPECT_EQ(plan_of("").command.limit, 0ms);
  EXPECT_TRUE(plan_of("--back-to-back").command.back_to_back);
  EXPECT_EQ(plan_of("--back-to-back").command.limit, 60ms);
  EXPECT_EQ(plan_of("--back-to-back --limit-ms 5").command.limit, 5ms);
}

TEST(BenchFlags, StepBytesAdd) {
  EXPECT_THAT(plan_of("--minbytes 1K --maxbytes 3K --stepbytes 1K").sizes, ElementsAre(1024, 2048, 3072));
}

TEST(BenchFlags, SizesAsAList) {
  EXPECT_THAT(plan_of("--sizes 4,64K,1M").sizes, ElementsAre(4, 65536, 1U << 20U));
}

TEST(BenchFlags, CollectivesByPlaceOrByName) {
  EXPECT_THAT(plan_of("all_gather,broadcast -e 64").operations,
              ElementsAre(Operation::all_gather, Operation::broadcast));
  EXPECT_THAT(plan_of("--collective allreduce,allreduce").operations, ElementsAre(Operation::all_reduce));
  EXPECT_EQ(plan_of("all").operations, all_operations());
}

TEST(BenchFlags, ListsEndAtTheNextWord) {
  const auto flags = parse("--backends shm,thread --sizes 4,8 broadcast");
  EXPECT_THAT(flags.backends, ElementsAre("shm", "thread"));
  EXPECT_THAT(flags.sizes, ElementsAre("4", "8"));
  EXPECT_THAT(flags.collectives, ElementsAre("broadcast"));
}

TEST(BenchFlags, MemoryOfBothKinds) {
  EXPECT_THAT(plan_of("--memory both").memory, ElementsAre(MemoryKind::ordinary, MemoryKind::group));
  EXPECT_THAT(plan_of("--memory group").memory, ElementsAre(MemoryKind::group));
}

TEST(BenchFlags, ErrorsNameTheFlag) {
  EXPECT_ERROR(ValueError, plan_of("-b 4Q"), "--minbytes: \"4Q\" is not a size");
  EXPECT_ERROR(ValueError, plan_of("-b 8 -e 4"), "above the largest");
  EXPECT_ERROR(ValueError, plan_of("-o median"), "--op: \"median\" is no reduction: sum");
  EXPECT_ERROR(ValueError, plan_of("-d quarter"), "--datatype: ");
  EXPECT_ERROR(ValueError, plan_of("juggle"), "--collective: \"juggle\" is no collective: all_reduce");
  EXPECT_THROW(parse("-n 0"), CLI::ParseError);
  EXPECT_THROW(parse("--ranks 0"), CLI::ParseError);
  EXPECT_THROW(parse("--memory borrowed"), CLI::ParseError);
  EXPECT_THROW(parse("--rounds -1"), CLI::ParseError);
}

TEST(BenchFlags, HelpHasExamplesAndOnlyWhatIsForPeople) {
  CLI::App app;
  const auto flags = add_bench_flags(app);
  const auto help = app.help();
  EXPECT_THAT(help, testing::HasSubstr("--peers peers.json"));
  EXPECT_THAT(help, testing::Not(testing::HasSubstr("--drive ")));
}

}  // namespace
