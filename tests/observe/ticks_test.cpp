// SPDX-License-Identifier: BSD-3-Clause
#include "core/ticks.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cohort::test {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST(TicksTest, TranslateToTheTimeOfDay) {
  const TickClock clock;
  const auto before = now_ns();
  const auto tick = ticks();
  const auto after = now_ns();
  // The test does not wait: the rate must be found from the little time that passes here.
  const auto shown = clock.scale().epoch_ns(tick);
  constexpr std::int64_t slack = 1'000'000;
  EXPECT_GE(shown, before - slack);
  EXPECT_LE(shown, after + slack);
}

TEST(TicksTest, MeasureDurations) {
  const TickClock clock;
  const auto steady_before = std::chrono::steady_clock::now();
  const auto before = ticks();
  while (std::chrono::steady_clock::now() - steady_before < std::chrono::milliseconds(20)) {
  }
  const auto after = ticks();
  const auto real = std::chrono::steady_clock::now() - steady_before;
  const auto shown = std::chrono::nanoseconds(clock.scale().duration_ns(before, after));
  EXPECT_GE(shown, std::chrono::milliseconds(19));
  EXPECT_LE(shown, real + std::chrono::milliseconds(1));
  EXPECT_LT(clock.scale().duration_ns(after, before), 0);
}

}  // namespace
}  // namespace cohort::test
