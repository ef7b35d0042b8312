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

/// A machine on which the two ways take these times.
struct Machine {
  std::chrono::nanoseconds staged;
  std::chrono::nanoseconds read;

  /// Returns how many of the operations used Way::read.
  int run(AutoTuner& trials, int operations, std::size_t piece = mebibyte, Pattern pattern = Pattern::from_all) const {
    int reads = 0;
    for (int i = 0; i < operations; ++i) {
      const auto way = trials.next(pattern, piece);
      if (way == Way::read) ++reads;
      trials.took(way, pattern, piece, way == Way::read ? read : staged);
    }
    return reads;
  }
};

TEST(AutoTunerTest, BothWaysAreTriedFirst) {
  AutoTuner trials;
  EXPECT_EQ((Machine{1ms, 9ms}.run(trials, 4)), 2);
}

TEST(AutoTunerTest, TheFasterOneIsTaken) {
  AutoTuner reading;
  Machine{2ms, 1ms}.run(reading, 65);
  EXPECT_EQ((Machine{2ms, 1ms}.run(reading, 60)), 60);
  AutoTuner staging;
  Machine{1ms, 2ms}.run(staging, 65);
  EXPECT_EQ((Machine{1ms, 2ms}.run(staging, 60)), 0);
}

TEST(AutoTunerTest, TheOtherOneGetsFewChances) {
  AutoTuner trials;
  EXPECT_LE((Machine{1ms, 5ms}.run(trials, 1000)), 12);
  EXPECT_LE((Machine{1ms, 5ms}.run(trials, 10'000)), 45) << "less than one in a hundred";
}

TEST(AutoTunerTest, AFirstImpressionIsRevisedSoon) {
  AutoTuner trials;
  Machine{9ms, 2ms}.run(trials, 4);  // pages are touched for the first time
  const Machine warm{1ms, 2ms};
  warm.run(trials, 5);
  EXPECT_LE(warm.run(trials, 100), 4);
}

TEST(AutoTunerTest, AMachineThatChangesIsNoticed) {
  AutoTuner trials;
  Machine{1ms, 2ms}.run(trials, 100);
  const Machine moved{4ms, 2ms};
  moved.run(trials, 200);
  EXPECT_GE(moved.run(trials, 100), 98);
}

TEST(AutoTunerTest, OneOutlierChangesNothing) {
  AutoTuner trials;
  Machine{1ms, 2ms}.run(trials, 35);
  Machine{800ms, 800ms}.run(trials, 1);
  EXPECT_EQ((Machine{1ms, 2ms}.run(trials, 20)), 0);
}

TEST(AutoTunerTest, SizesAndPatternsAreApart) {
  AutoTuner trials;
  Machine{2ms, 1ms}.run(trials, 5, 1 * mebibyte);
  Machine{1ms, 2ms}.run(trials, 5, 64 * mebibyte);
  Machine{1ms, 2ms}.run(trials, 5, 1 * mebibyte, Pattern::from_one);
  EXPECT_EQ(trials.next(Pattern::from_all, 1 * mebibyte), Way::read);
  EXPECT_EQ(trials.next(Pattern::from_all, 64 * mebibyte), Way::staged);
  EXPECT_EQ(trials.next(Pattern::from_one, 1 * mebibyte), Way::staged);
  Machine{1ms, 2ms}.run(trials, 4, 4096 * mebibyte);  // larger than the largest size class
}

}  // namespace
}  // namespace cohort::test
