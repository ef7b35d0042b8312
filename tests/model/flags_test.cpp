// SPDX-License-Identifier: BSD-3-Clause
// The flags of src/backends/shm: what is written before raise() is visible after await(), and no thread sleeps for
// ever.
#include "backends/shm/protocol/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "model/shm_parts.h"
#include "model/weak_atomics.h"

namespace cohort::model::test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t letter_count = 3;

/// Close to where the counter wraps around.
constexpr std::uint32_t start = std::uint32_t(-2);

template <Weakness weakness>
struct Bell {
  using Atomics = WeakAtomics<weakness>;
  shm::Flag<Atomics> flag;
  std::array<Plain<int>, letter_count> letter;

  Bell() {
    name_flag(flag, "flag");
    for (std::uint32_t i = 0; i < letter_count; ++i) name(letter[i], "letter " + std::to_string(i));
    flag.value.store(start, std::memory_order_relaxed);
  }

  void write() {
    for (std::uint32_t i = 0; i < letter_count; ++i) {
      letter[i] = static_cast<int>(i) + 1;
      shm::raise(flag, start + i + 1);
    }
  }
  void read() {
    ShortWatch watch;
    watch.waits_for(0);
    for (std::uint32_t i = 0; i < letter_count; ++i) {
      shm::await(flag, start + i + 1, watch);
      require(letter[i] == static_cast<int>(i) + 1, "the letter is there when the flag is");
    }
  }
};

template <Weakness weakness>
Report explore_bell(int readers, const Options& options = {}) {
  return explore(options, [readers](Program& program) {
    auto& bell = program.make<Bell<weakness>>();
    program.thread("writer", [&bell] { bell.write(); });
    for (int i = 0; i < readers; ++i) {
      program.thread("reader " + std::to_string(i), [&bell] { bell.read(); });
    }
    program.after([&bell] {
      require(bell.flag.sleepers.load(std::memory_order_relaxed) == 0, "whoever went to sleep has said it is back");
    });
  });
}

TEST(FlagsTest, HoldInTenThousandInterleavings) {
  for (const int readers : {2, 3}) {
    const auto report = explore_bell<Weakness::none>(readers, {.executions = 20'000});
    EXPECT_FALSE(report.failure) << report;
    EXPECT_GE(report.distinct, 10'000U) << readers;
  }
}

TEST(FlagsTest, HoldWhenSleepersWakeForNoReason) {
  const auto report = explore_bell<Weakness::none>(2, {.executions = 20'000, .spurious_wakeups = 3});
  EXPECT_FALSE(report.failure) << report;
  EXPECT_GE(report.distinct, 10'000U);
}

TEST(FlagsTest, WithoutEitherFenceAWakeUpIsLost) {
  EXPECT_THAT(failure(explore_bell<Weakness::no_light_fence>(1)), HasSubstr("sleeps on flag"));
  EXPECT_THAT(failure(explore_bell<Weakness::no_heavy_fence>(1)), HasSubstr("sleeps on flag"));
}

TEST(FlagsTest, WithoutAWakeASleeperStays) {
  EXPECT_THAT(failure(explore_bell<Weakness::no_wake>(1)), HasSubstr("sleeps on flag"));
}

TEST(FlagsTest, WithoutReleaseThePayloadIsStale) {
  EXPECT_THAT(failure(explore_bell<Weakness::no_release>(1)), HasSubstr("data race on letter"));
}

TEST(FlagsTest, WithoutAcquireThePayloadIsStale) {
  EXPECT_THAT(failure(explore_bell<Weakness::no_acquire>(1)), HasSubstr("data race on letter"));
}

}  // namespace
}  // namespace cohort::model::test
