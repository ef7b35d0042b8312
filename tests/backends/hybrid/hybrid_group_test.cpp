// SPDX-License-Identifier: BSD-3-Clause
//
// What is particular to backends hybrid and auto: which ranks share a host, and how the loss of one is reported.
#include "backends/common/engine_ranks.h"
#include "backends/hybrid/backend.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

const hybrid::Placement& placement_of(const ProcessGroupPtr& group) {
  return dynamic_cast<hybrid::HybridBackend&>(*group->default_backend()).placement();
}

class HybridGroup : public NeedsGloo {};
class AutoGroup : public NeedsGloo {};

TEST_F(HybridGroup, FindsWhoSharesAHost) {
  const EngineRanks ranks("hybrid", 5, 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    EXPECT_EQ(to_string(placement_of(group)), "2 hosts: 0-2 | 3-4");
    return 0;
  }),
              Each(0));
}

TEST_F(HybridGroup, RanksOfOneMachineShareItUnlessToldOtherwise) {
  const EngineRanks ranks("hybrid", 3);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    EXPECT_EQ(to_string(placement_of(group)), "1 host: 0-2");
    EXPECT_TRUE(group->capabilities("cpu").deterministic_order) << "it is all in shared memory";
    return 0;
  }),
              Each(0));
}

TEST_F(HybridGroup, SplitsKnowTheirHosts) {
  const EngineRanks ranks("hybrid", 5, 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    const auto mixed = group->split_group({1, 2, 4});
    const auto here = group->split_group({3, 4});
    if (mixed) {
      EXPECT_EQ(to_string(placement_of(mixed)), "2 hosts: 0-1 | 2");
      std::int32_t sum = rank;
      mixed->all_reduce(std::span(&sum, 1));
      EXPECT_EQ(sum, 7);
    }
    if (here) {
      EXPECT_EQ(to_string(placement_of(here)), "1 host: 0-1");
    }
    group->barrier();
    return 0;
  }),
              Each(0));
}

TEST_F(HybridGroup, AKilledRankIsNamedOnItsHostAndOnOthers) {
  expect_loss_is_noticed(EngineRanks("hybrid", 4, 2), 4, 3, 2s);
}

// Large reductions are cut into parts and run on two threads.
TEST_F(HybridGroup, LargeReductionsAreCompleteOnUnevenHosts) {
  constexpr std::size_t count = 10'000'003;
  const EngineRanks ranks("hybrid", 5, 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    std::vector<float> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(rank));
    for (int round = 0; round < 3; ++round) group->all_reduce(x, {.op = ReduceOp::avg()});
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += x[i] == static_cast<float>(i % 1000 + 2) ? 0 : 1;
    EXPECT_EQ(wrong, 0U);
    group->barrier();
    return 0;
  }),
              Each(0));
}

TEST_F(HybridGroup, AKilledRankEndsALargeReduction) {
  expect_loss_is_noticed(EngineRanks("hybrid", 4, 2), 4, 3, 4s, 10'000'003);
}

TEST_F(HybridGroup, UnknownEnginesAndOptionsAreRefused) {
  const GroupMembers alone{.store = std::make_shared<HashStore>(), .rank = 0, .size = 1};
  EXPECT_ERROR(ValueError, new_group("hybrid", 5s, "cpu", {{"engine", "pigeon"}}, alone), "gloo or mpi");
  EXPECT_ERROR(KeyError, new_group("hybrid", 5s, "cpu", {{"engines", "gloo"}}, alone), "engine");
  EXPECT_ERROR(ValueError, new_group("hybrid", 5s, "cuda:0", {}, alone), "cuda:0");
}

TEST_F(AutoGroup, IsSharedMemoryOnOneHost) {
  const EngineRanks ranks("auto", 3);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    EXPECT_EQ(group->name(), "shm");
    std::int32_t sum = 1;
    group->all_reduce(std::span(&sum, 1));
    return sum == 3 ? 0 : 1;
  }),
              Each(0));
}

TEST_F(AutoGroup, IsHybridOnSeveral) {
  const EngineRanks ranks("auto", 4, 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    EXPECT_EQ(group->name(), "hybrid");
    std::int32_t sum = 1;
    group->all_reduce(std::span(&sum, 1));
    return sum == 4 ? 0 : 1;
  }),
              Each(0));
}

TEST_F(AutoGroup, SaysInTheLogWhatItChose) {
  const EngineRanks ranks("auto", 2, 2);
  EXPECT_THAT(ranks.run([&](int rank) {
    ::setenv("COHORT_LOG", "info", 1);
    ::testing::internal::CaptureStderr();
    set_log_level(LogLevel::info);
    const auto group = ranks.join(rank);
    const auto said = ::testing::internal::GetCapturedStderr();
    if (rank == 0) {
      EXPECT_THAT(said, HasSubstr("hybrid over gloo, 2 hosts: 0 | 1"));
    }
    return 0;
  }),
              Each(0));
}

TEST_F(AutoGroup, OfThreadsIsSharedMemoryToo) {
  const auto store = std::make_shared<HashStore>();
  as_threads(3, [&](int rank) {
    const auto group = new_group("auto", patient, "cpu", {}, {.store = store, .rank = rank, .size = 3});
    EXPECT_EQ(group->name(), "thread");
    std::int32_t sum = 1;
    group->all_reduce(std::span(&sum, 1));
    EXPECT_EQ(sum, 3);
  });
}

}  // namespace
}  // namespace cohort::test
