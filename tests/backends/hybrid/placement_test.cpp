// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hybrid/placement.h"

#include <gmock/gmock.h>

namespace cohort::hybrid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlacementTest, HostsComeInTheOrderOfTheirLowestRanks) {
  const Placement placement({"b", "a", "b", "c", "a", "b"}, 4);
  EXPECT_THAT(placement.hosts(), ElementsAre(ElementsAre(0, 2, 5), ElementsAre(1, 4), ElementsAre(3)));
  EXPECT_EQ(placement.host(), 1U);
  EXPECT_EQ(placement.local_rank(), 1);
  EXPECT_THAT(placement.here(), ElementsAre(1, 4));
  EXPECT_EQ(placement.local_rank_of(5), 2);
  EXPECT_TRUE(placement.is_here(1));
  EXPECT_FALSE(placement.is_here(3));
  EXPECT_EQ(placement.fewest(), 1);
  EXPECT_EQ(placement.size(), 6);
}

TEST(PlacementTest, OfASubgroupHasRanksOfItsOwn) {
  const Placement parent({"x", "x", "y", "y", "y"}, 3);
  const auto child = parent.among({1, 3, 4}, 1);
  EXPECT_THAT(child.hosts(), ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
  EXPECT_EQ(child.local_rank(), 0);
}

TEST(PlacementTest, IsReadable) {
  EXPECT_EQ(to_string(Placement({"a", "a", "a", "b", "b", "a"}, 0)), "2 hosts: 0-2,5 | 3-4");
  EXPECT_EQ(to_string(Placement(std::vector<std::string>{"a"}, 0)), "1 host: 0");
}

TEST(PlacementTest, AHostIsItsBootUserAndNetworkOrWhatItIsCalled) {
  const auto found = host_name_of_this_process(Env::from({{"LOCAL_WORLD_SIZE", "4"}}));
  EXPECT_EQ(found, host_name_of_this_process(Env::from({{"LOCAL_WORLD_SIZE", "2"}}))) << "never guessed from it";
  EXPECT_THAT(found, HasSubstr("network"));
  const auto named = host_name_of_this_process(Env::from({{"COHORT_HOST_ID", "rack 7"}}));
  EXPECT_THAT(named, HasSubstr("rack 7"));
  EXPECT_THAT(named, Not(HasSubstr("network")));
}

}  // namespace
}  // namespace cohort::hybrid
