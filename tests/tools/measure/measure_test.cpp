// SPDX-License-Identifier: BSD-3-Clause
#include "measure/measure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <set>

namespace {

using namespace cohort::measure;
using namespace std::chrono_literals;

/// A system of one rank, whose operations take as long as they are told to and do what they are told to.
class MadeUpSystem final : public System {
 public:
  std::chrono::microseconds takes{0};
  bool is_right = true;
  std::string refuses{};

  int operations = 0;
  int finished = 0;
  int barriers = 0;
  std::set<float> values_found{};

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::optional<std::string> refusal(const Command& /*command*/) const override {
    return refuses.empty() ? std::nullopt : std::optional(refuses);
  }
  void run(const Job& job) override {
    ++operations;
    const auto end = std::chrono::steady_clock::now() + takes;
    while (std::chrono::steady_clock::now() < end) {
    }
    if (job.output != nullptr) values_found.insert(*static_cast<float*>(job.output));
    if (!is_right && job.output != nullptr) *static_cast<float*>(job.output) += 1;
  }
  void finish() override { ++finished; }
  void barrier() override { ++barriers; }
  void max_over_ranks(std::span<double> /*values*/) override {}
};

Command small() {
  return {.operation = Operation::all_reduce, .bytes = 400, .warmup = 2, .iters = 5};
}

TEST(BenchMeasure, LongOperationsAreTimedOneByOne) {
  MadeUpSystem system;
  system.takes = 2ms;
  const auto answer = answer_to(system, small());
  EXPECT_EQ(answer.batch, 1);
  ASSERT_EQ(answer.microseconds.size(), 5U);
  for (const auto sample : answer.microseconds) EXPECT_GE(sample, 2000);
  EXPECT_EQ(system.operations, 2 + 5);
  EXPECT_EQ(system.barriers, 1 + 5) << "before the first operation and before each sample";
}

TEST(BenchMeasure, ShortOperationsAreTimedSeveralAtATime) {
  MadeUpSystem system;
  system.takes = 10us;
  const auto answer = answer_to(system, small());
  EXPECT_GT(answer.batch, 1);
  ASSERT_EQ(answer.microseconds.size(), 5U);
  for (const auto sample : answer.microseconds) EXPECT_GE(sample, 10) << "of one operation, not of all";
}

TEST(BenchMeasure, LargeArraysAreRewrittenBeforeEachOperation) {
  MadeUpSystem system;
  system.is_right = false;  // each operation changes what it finds, and the next must not find that
  auto command = small();
  command.bytes = 64 << 10;
  answer_to(system, command);
  EXPECT_EQ(system.values_found.size(), 1U);
  command.batch = 2;
  answer_to(system, command);
  EXPECT_GT(system.values_found.size(), 2U) << "back to back as asked for";
}

TEST(BenchMeasure, ABatchThatWasAskedForIsKept) {
  MadeUpSystem system;
  auto command = small();
  command.batch = 3;
  EXPECT_EQ(answer_to(system, command).batch, 3);
}

TEST(BenchMeasure, TheLimitLeavesThreeSamples) {
  MadeUpSystem system;
  system.takes = 3ms;
  auto command = small();
  command.iters = 1000;
  command.warmup = 1000;
  command.limit = 5ms;
  EXPECT_EQ(answer_to(system, command).microseconds.size(), 3U);
  EXPECT_LT(system.operations, 20);
}

TEST(BenchMeasure, HalfARoundTripIsHalf) {
  MadeUpSystem system;
  system.takes = 2ms;
  auto command = small();
  command.operation = Operation::send_recv;
  command.in_place = false;
  const auto start = std::chrono::steady_clock::now();
  const auto answer = answer_to(system, command);
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  const auto& samples = answer.microseconds;
  for (const auto sample : samples) EXPECT_GE(sample, 1000);
  EXPECT_LE(2 * std::accumulate(samples.begin(), samples.end(), 0.0), elapsed.count()) << "two halves are a round trip";
}

TEST(BenchMeasure, WrongElementsAreCounted) {
  MadeUpSystem system;
  auto command = small();
  command.check = true;
  EXPECT_EQ(answer_to(system, command).wrong, 0U);
  system.is_right = false;
  EXPECT_EQ(answer_to(system, command).wrong, 1U);
  command.check = false;
  EXPECT_EQ(answer_to(system, command).wrong, 0U) << "not asked for";
}

TEST(BenchMeasure, WhatASystemDoesNotDoIsNotTried) {
  MadeUpSystem system;
  system.refuses = "not today";
  const auto answer = answer_to(system, small());
  EXPECT_EQ(answer.refusal, "not today");
  EXPECT_EQ(system.operations, 0);
}

}  // namespace
