// SPDX-License-Identifier: BSD-3-Clause
//
// Whole programs, started by hand or with torchrun's variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>

#include "store/socket.h"
#include "support/ranks.h"
#include "support/spawned.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

std::vector<Spawned::Result> run(const std::string& mode, int size, std::map<std::string, std::string> variables) {
  variables.emplace("WORLD_SIZE", std::to_string(size));
  variables.emplace("MASTER_ADDR", "127.0.0.1");
  variables.emplace("MASTER_PORT", std::to_string(bound_endpoint(listen_on(Endpoint::tcp("127.0.0.1", 0)).get()).port));
  std::vector<Spawned> ranks;
  // The last rank first: clients may come before their server.
  for (int rank = size - 1; rank >= 0; --rank) {
    variables["RANK"] = std::to_string(rank);
    variables["LOCAL_RANK"] = std::to_string(rank);
    ranks.emplace_back(std::vector<std::string>{EXCHANGING_RANK, mode}, variables);
  }
  std::vector<Spawned::Result> results;
  for (auto it = ranks.rbegin(); it != ranks.rend(); ++it) results.push_back(it->finish());
  return results;
}

TEST(ProcessesTest, ByHand) {
  for (const int size : {1, 2, 4, 8}) {
    const auto results = run("plain", size, {});
    for (int rank = 0; rank < size; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(result.status, 0) << result.output;
      EXPECT_EQ(result.output, "rank " + std::to_string(rank) + " of " + std::to_string(size) + "\n");
    }
  }
}

TEST(ProcessesTest, UnderTorchrunsVariables) {
  const auto results = run("plain", 3,
                           {{"LOCAL_WORLD_SIZE", "3"},
                            {"GROUP_RANK", "0"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "0"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.output;
}

TEST(ProcessesTest, RankZeroStaysUntilAllHaveLeft) {
  for (const auto& result : run("rank0-first", 3, {})) EXPECT_EQ(result.status, 0) << result.output;
}

TEST(ProcessesTest, RankZeroDoesNotStayWhenItFails) {
  const auto took = time_of([] {
    const auto results = run("rank0-fails", 3, {});
    EXPECT_EQ(results[0].status, 7);
    EXPECT_EQ(results[1].status, 0) << results[1].output;
    EXPECT_EQ(results[2].status, 0) << results[2].output;
  });
  EXPECT_LT(took, 10s) << "its end is how the others learn of the failure";
}

TEST(ProcessesTest, TwoProcessesWithOneRankAreTold) {
  const auto port = std::to_string(bound_endpoint(listen_on(Endpoint::tcp("127.0.0.1", 0)).get()).port);
  const std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  Spawned first({EXCHANGING_RANK}, variables);
  Spawned second({EXCHANGING_RANK}, variables);
  // One of them is told. Were rank 1 there before, the other two could be done and gone when the third one comes.
  std::array<pollfd, 2> told = {{{first.output(), POLLIN, 0}, {second.output(), POLLIN, 0}}};
  ASSERT_GT(::poll(told.data(), told.size(), 60'000), 0);
  auto another = variables;
  another["RANK"] = "1";
  Spawned other({EXCHANGING_RANK}, another);
  const auto results = {first.finish(), second.finish(), other.finish()};
  int failed = 0;
  for (const auto& result : results) {
    if (result.status == 0) continue;
    ++failed;
    EXPECT_THAT(result.output, ::testing::HasSubstr("in use"));
  }
  EXPECT_EQ(failed, 1) << "one rank 0 too many, and the job goes on without it";
}

}  // namespace
}  // namespace cohort::test
