// SPDX-License-Identifier: BSD-3-Clause
#include "measure/interleaved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace cohort::measure;
using testing::ElementsAre;

TEST(BenchInterleaved, TheFirstToBeMeasuredChangesFromRoundToRound) {
  std::vector<std::size_t> order;
  const auto figures = take_turns(3, 2, [&](std::size_t contestant) {
    order.push_back(contestant);
    return static_cast<double>(order.size());
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 1, 2, 0));
  EXPECT_THAT(figures, ElementsAre(ElementsAre(1, 6), ElementsAre(2, 4), ElementsAre(3, 5)));
}

}  // namespace
