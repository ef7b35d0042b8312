// SPDX-License-Identifier: BSD-3-Clause
#include "bench/peers.h"

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/expect_error.h"
#include "support/temporary.h"

namespace {

using namespace cohort::bench;
using cohort::ValueError;
using cohort::test::TemporaryFolder;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> names_of(const std::vector<PeerSetting>& settings) {
  std::vector<std::string> names;
  for (const auto& setting : settings) names.push_back(setting.name);
  return names;
}

TEST(BenchPeers, OnlyWhatWasBuiltIsThere) {
  const TemporaryFolder folder;
  EXPECT_THAT(available_peers({.ranks = 2, .cores = 2, .drivers = folder / ""}), IsEmpty());
  std::ofstream(folder / "gloo_driver") << "";
  EXPECT_THAT(names_of(available_peers({.ranks = 2, .cores = 2, .drivers = folder / ""})),
              ElementsAre("gloo:ring", "gloo:bcube", "gloo:hd", "gloo:hd_busy"));
}

TEST(BenchPeers, TheSearchIsExplained) {
  const TemporaryFolder folder;
  std::ofstream(folder / "gloo_driver") << "";
  const auto text = describe_search({.ranks = 2, .cores = 2, .drivers = folder / ""});
  EXPECT_THAT(text, testing::HasSubstr("gloo: found"));
  EXPECT_THAT(text, testing::HasSubstr("openmpi: there is no " + (folder / "mpi_driver.openmpi")));
  EXPECT_THAT(text, testing::HasSubstr("mpich: there is no " + (folder / "mpi_driver.mpich")));
  EXPECT_THAT(text, testing::HasSubstr("COHORT_BENCH"));
}

TEST(BenchPeers, NobodyPollsWithMoreRanksThanCores) {
  const TemporaryFolder folder;
  std::ofstream(folder / "gloo_driver") << "";
  const auto peers = available_peers({.ranks = 4, .cores = 2, .drivers = folder / ""});
  EXPECT_THAT(names_of(peers), ElementsAre("gloo:ring", "gloo:bcube", "gloo:hd"));
  EXPECT_THAT(peers.front().command, Contains("4"));
}

TEST(BenchPeers, OpenMpiIsToldToYieldWithMoreRanksThanCores) {
  const TemporaryFolder folder;
  std::ofstream(folder / "mpi_driver.openmpi") << "";
  const auto crowded = available_peers({.ranks = 4, .cores = 2, .drivers = folder / ""});
  const auto roomy = available_peers({.ranks = 2, .cores = 2, .drivers = folder / ""});
  if (roomy.empty()) GTEST_SKIP() << "Open MPI is not installed";
  for (const auto& peer : crowded) EXPECT_THAT(peer.command, Contains("--oversubscribe"));
  for (const auto& peer : roomy) EXPECT_THAT(peer.command, testing::Not(Contains("--oversubscribe")));
}

TEST(BenchPeers, AreChosenByLibraryOrSetting) {
  const std::vector<PeerSetting> available{{.name = "openmpi:default"}, {.name = "openmpi:ucx"}, {.name = "gloo:hd"}};
  EXPECT_THAT(names_of(choose_peers(available, {"none"})), IsEmpty());
  EXPECT_EQ(choose_peers(available, {"auto"}).size(), 3U);
  EXPECT_THAT(names_of(choose_peers(available, {"openmpi"})), ElementsAre("openmpi:default", "openmpi:ucx"));
  EXPECT_THAT(names_of(choose_peers(available, {"gloo:hd", "openmpi:ucx"})), ElementsAre("openmpi:ucx", "gloo:hd"));
  EXPECT_ERROR(ValueError, choose_peers(available, {"mpich"}), "no peer \"mpich\" here: openmpi:default");
  EXPECT_ERROR(ValueError, choose_peers({}, {"mpich"}), "COHORT_BENCH=ON");
  EXPECT_THAT(choose_peers({}, {"auto"}), IsEmpty());
}

}  // namespace
