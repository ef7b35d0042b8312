// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/collectives/tuned_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "backends/shm/engines.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using shm::AutoTuner;
using shm::Engine;
using ::testing::Contains;
using ::testing::Each;

/// The ways that the ranks have gone in successive operations, for each rank. Two places take long.
std::vector<std::vector<AutoTuner::Way>> ways_of(int ranks, int operations, std::size_t piece,
                                                 std::optional<double> factor = {}) {
  std::vector<std::vector<AutoTuner::Way>> ways(static_cast<std::size_t>(ranks));
  with_engines(ranks, [&](Engine& engine) {
    for (int i = 0; i < operations; ++i) {
      Call call(OpType::barrier, 1, 60s);
      shm::Collective collective(engine, Operation::barrier(), call);
      shm::TunedTransfer transfer(engine, collective, AutoTuner::Pattern::all_reduce, piece, factor);
      transfer.publish(false);
      collective.await_all();
      if (factor) {
        EXPECT_EQ(collective.detail_of(ranks - 1).factor, *factor);
      }
      transfer.run(piece, true, [&](AutoTuner::Way way) {
        ways[static_cast<std::size_t>(engine.rank())].push_back(way);
        if (way == AutoTuner::Way::staged_in_two_places) std::this_thread::sleep_for(5ms);
      });
    }
  });
  return ways;
}

TEST(TunedTransferTest, AllRanksGoTheSameWay) {
  const auto ways = ways_of(3, 12, 64 * shm::kib);
  EXPECT_THAT(ways, Each(ways[0]));
  EXPECT_THAT(ways[0], Contains(AutoTuner::Way::staged));
  EXPECT_THAT(ways[0], Contains(AutoTuner::Way::staged_in_two_places));
}

TEST(TunedTransferTest, TheSlowWayIsLeft) {
  auto ways = ways_of(2, 16, 64 * shm::kib)[0];
  ways.erase(ways.begin(), ways.begin() + 4);  // each way has been tried twice
  EXPECT_THAT(ways, Each(AutoTuner::Way::staged));
}

TEST(TunedTransferTest, ShortPiecesGoTheUsualWay) {
  EXPECT_THAT(ways_of(2, 5, AutoTuner::smallest - 1)[0], Each(AutoTuner::otherwise));
}

TEST(TunedTransferTest, FactorsArePublishedInsteadOfTheWay) {
  EXPECT_THAT(ways_of(2, 5, 64 * shm::kib, 0.5)[1], Each(AutoTuner::otherwise));
}

}  // namespace
}  // namespace cohort::test
