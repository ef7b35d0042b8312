// SPDX-License-Identifier: BSD-3-Clause
#include "bench/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace cohort::bench;
using namespace cohort::measure;

/// Answers with a fixed time and notes when it was asked.
class Scripted final : public Contestant {
 public:
  Scripted(ContestantName name, Answer answer, std::vector<std::string>& log)
      : Contestant(std::move(name)), answer_(std::move(answer)), log_(log) {}
  Answer ask(const Command& command) override {
    log_.push_back(name().backend);
    commands.push_back(command);
    return answer_;
  }
  void release_memory() override {}

  std::vector<Command> commands;

 private:
  Answer answer_;
  std::vector<std::string>& log_;
};

class BenchComparison : public testing::Test {
 protected:
  Scripted& add(const std::string& name, bool is_peer, Answer answer) {
    auto contestant = std::make_unique<Scripted>(
        ContestantName{.backend = name, .memory = "ordinary", .is_peer = is_peer}, std::move(answer), log_);
    auto& added = *contestant;
    contestants_.push_back(std::move(contestant));
    return added;
  }
  static Answer taking(double microseconds) { return {.microseconds = {microseconds, microseconds}}; }

  std::vector<std::string> log_;
  std::vector<std::unique_ptr<Contestant>> contestants_;
  Command broadcast_{.operation = Operation::broadcast, .bytes = 64};
};

TEST_F(BenchComparison, EveryRoundHasEveryone) {
  for (const auto* const name : {"a", "b", "c", "d"}) add(name, false, taking(1));
  const auto result = compare(contestants_, broadcast_, 2, {.rounds = 6});
  ASSERT_EQ(log_.size(), 24U);
  std::set<std::vector<std::string>> orders;
  for (std::size_t round = 0; round < 6; ++round) {
    const auto first = log_.begin() + static_cast<std::ptrdiff_t>(round * 4);
    EXPECT_EQ(std::set<std::string>(first, first + 4).size(), 4U);
    orders.insert({first, first + 4});
  }
  EXPECT_GT(orders.size(), 1U) << "the order changes";
  for (const auto& row : result.rows) EXPECT_EQ(row.in_place.rounds.samples.size(), 6U);
}

TEST_F(BenchComparison, ChecksOnce) {
  auto& only = add("a", false, taking(1));
  compare(contestants_, broadcast_, 2, {.rounds = 3, .check = true});
  ASSERT_EQ(only.commands.size(), 3U);
  EXPECT_TRUE(only.commands[0].check);
  EXPECT_FALSE(only.commands[1].check);
}

TEST_F(BenchComparison, BothPlacesWhereThereAreTwo) {
  auto& only = add("a", false, taking(1));
  compare(contestants_, {.operation = Operation::all_gather, .bytes = 64}, 2, {});
  ASSERT_EQ(only.commands.size(), 2U);
  EXPECT_FALSE(only.commands[0].in_place);
  EXPECT_TRUE(only.commands[1].in_place);
}

TEST_F(BenchComparison, OnePlaceWhereOneIsWanted) {
  using Placements = ComparisonOptions::Placements;
  auto& only = add("a", false, taking(1));
  compare(contestants_, {.operation = Operation::all_gather, .bytes = 64}, 2, {.placements = Placements::out_of_place});
  compare(contestants_, broadcast_, 2, {.placements = Placements::out_of_place});
  ASSERT_EQ(only.commands.size(), 2U);
  EXPECT_FALSE(only.commands[0].in_place);
  EXPECT_TRUE(only.commands[1].in_place) << "it has no other";
}

TEST_F(BenchComparison, SlowPeersAreDroppedAfterTwoRounds) {
  add("ours", false, taking(100));
  add("best", true, taking(10));
  add("near", true, taking(15));
  add("far", true, taking(30));
  const auto result = compare(contestants_, broadcast_, 2, {.rounds = 5, .drop_peers_beyond = 2});
  const auto rounds = [&](std::size_t index) { return result.rows[index].in_place.rounds.samples.size(); };
  EXPECT_EQ(rounds(0), 5U) << "never ours";
  EXPECT_EQ(rounds(1), 5U);
  EXPECT_EQ(rounds(2), 5U);
  EXPECT_EQ(rounds(3), 2U);
}

TEST_F(BenchComparison, WhoFailsOrRefusesIsNotAskedAgain) {
  add("fails", true, {.error = "lost"});
  add("refuses", true, {.refusal = "has none"});
  const auto result = compare(contestants_, broadcast_, 2, {.rounds = 4});
  EXPECT_EQ(log_.size(), 2U);
  EXPECT_EQ(result.rows[0].in_place.failure, "lost");
  EXPECT_EQ(result.rows[1].in_place.refusal, "has none");
  EXPECT_FALSE(result.rows[0].in_place.has_figures());
}

TEST_F(BenchComparison, SaysWhatWasMeasured) {
  add("a", false, taking(1));
  const auto result = compare(contestants_, {.operation = Operation::all_gather, .bytes = 66}, 4, {});
  EXPECT_EQ(result.count, 4U);
  EXPECT_EQ(result.bytes, 64U) << "whole elements for each rank";
}

}  // namespace
