// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/auto_tuner.h"

#include <gtest/gtest.h>

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using shm::AutoTuner;
using Way = AutoTuner::Way;
using Pattern = AutoTuner::Pattern;

constexpr std::size_t mebibyte = std::size_t{1} << 20U;

/// A machine on which the ways take these times.
struct Machine {
  std::chrono::nanoseconds staged;
  std::chrono::nanoseconds read;
  std::chrono::nanoseconds in_two_places = 1h;

  std::chrono::nanoseconds time_of(Way way) const {
    return way == Way::staged ? staged : way == Way::read ? read : in_two_places;
  }
  /// Returns how many of the operations used Way::read.
  int run(AutoTuner& trials, int operations, std::size_t piece = mebibyte, Pattern pattern = Pattern::message,
          std::span<const Way> ways = AutoTuner::message_ways) const {
    int reads = 0;
    for (int i = 0; i < operations; ++i) {
      const auto way = trials.next(pattern, piece, ways);
      if (way == Way::read) ++reads;
      trials.took(way, pattern, piece, time_of(way));
    }
    return reads;
  }
};

TEST(AutoTunerTest, AllWaysAreTriedFirst) {
  AutoTuner two;
  EXPECT_EQ((Machine{1ms, 9ms}.run(two, 4)), 2);
  AutoTuner three;
  EXPECT_EQ((Machine{1ms, 9ms, 9ms}.run(three, 6, mebibyte, Pattern::all_reduce, AutoTuner::all_ways)), 2);
}

TEST(AutoTunerTest, TheFastestOneIsTaken) {
  AutoTuner reading;
  Machine{2ms, 1ms}.run(reading, 65);
  EXPECT_EQ((Machine{2ms, 1ms}.run(reading, 60)), 60);
  AutoTuner staging;
  Machine{1ms, 2ms}.run(staging, 65);
  EXPECT_EQ((Machine{1ms, 2ms}.run(staging, 60)), 0);
  AutoTuner any;
  const Machine machine{2ms, 3ms, 1ms};
  machine.run(any, 65, mebibyte, Pattern::all_reduce, AutoTuner::all_ways);
  EXPECT_EQ(any.next(Pattern::all_reduce, mebibyte, AutoTuner::all_ways), Way::staged_in_two_places);
}

TEST(AutoTunerTest, OnlyTheGivenWaysAreTaken) {
  AutoTuner trials;
  EXPECT_EQ((Machine{3ms, 1ms, 2ms}.run(trials, 1000, mebibyte, Pattern::reduce, AutoTuner::staged_ways)), 0);
}

TEST(AutoTunerTest, TheOthersGetFewChances) {
  AutoTuner trials;
  EXPECT_LE((Machine{1ms, 5ms}.run(trials, 1000, mebibyte / 2)), 12);
  EXPECT_LE((Machine{1ms, 5ms}.run(trials, 10'000, mebibyte / 2)), 45) << "less than one in a hundred";
  EXPECT_LE((Machine{1ms, 5ms}.run(trials, 1000, mebibyte)), 20);
}

TEST(AutoTunerTest, AFirstImpressionIsRevisedSoon) {
  AutoTuner trials;
  Machine{9ms, 2ms}.run(trials, 4);  // pages are touched for the first time
  const Machine warm{1ms, 2ms};
  warm.run(trials, 13);
  EXPECT_LE(warm.run(trials, 100), 4);
}

TEST(AutoTunerTest, AMachineThatChangesIsNoticed) {
  AutoTuner trials;
  Machine{1ms, 2ms}.run(trials, 100);
  const Machine moved{4ms, 2ms};
  moved.run(trials, 2);
  EXPECT_EQ(moved.run(trials, 20), 20) << "after two operations";
  // And back again, also where there are more ways to try.
  AutoTuner any;
  const Machine near{1ms, 3ms, 2ms};
  const Machine apart{9ms, 3ms, 8ms};
  near.run(any, 100, mebibyte, Pattern::from_all, AutoTuner::all_ways);
  apart.run(any, 300, mebibyte, Pattern::from_all, AutoTuner::all_ways);
  EXPECT_EQ(any.next(Pattern::from_all, mebibyte, AutoTuner::all_ways), Way::read);
  near.run(any, 150, mebibyte, Pattern::from_all, AutoTuner::all_ways);
  EXPECT_EQ(any.next(Pattern::from_all, mebibyte, AutoTuner::all_ways), Way::staged);
}

TEST(AutoTunerTest, OneOutlierChangesNothing) {
  AutoTuner trials;
  Machine{1ms, 2ms}.run(trials, 35);
  Machine{800ms, 800ms}.run(trials, 1);
  EXPECT_EQ((Machine{1ms, 2ms}.run(trials, 20)), 0);
}

TEST(AutoTunerTest, SizesAndPatternsAreApart) {
  AutoTuner trials;
  const auto next = [&](std::size_t piece, Pattern pattern) {
    return trials.next(pattern, piece, AutoTuner::message_ways);
  };
  Machine{2ms, 1ms}.run(trials, 5, 1 * mebibyte);
  Machine{1ms, 2ms}.run(trials, 5, 64 * mebibyte);
  Machine{1ms, 2ms}.run(trials, 5, 1 * mebibyte, Pattern::from_one);
  EXPECT_EQ(next(1 * mebibyte, Pattern::message), Way::read);
  EXPECT_EQ(next(64 * mebibyte, Pattern::message), Way::staged);
  EXPECT_EQ(next(1 * mebibyte, Pattern::from_one), Way::staged);
  Machine{1ms, 2ms}.run(trials, 4, 4096 * mebibyte);  // larger than the largest size class
  Machine{1ms, 2ms}.run(trials, 4, 1);                // smaller than the smallest
}

}  // namespace
}  // namespace cohort::test
