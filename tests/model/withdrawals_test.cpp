// SPDX-License-Identifier: BSD-3-Clause
// A receiver that reads a message out of the sender's memory never takes what the sender wrote there after it gave up.
#include "backends/shm/protocol/withdrawals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "backends/shm/protocol/flags.h"
#include "model/explorer.h"
#include "model/model_atomics.h"
#include "model/shm_parts.h"

namespace cohort::model::test {
namespace {

using ::testing::HasSubstr;

/// The same without the orders that withdrawals.h argues for.
template <class Atomics>
class UnorderedWithdrawals {
 public:
  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  void withdraw() { count_.fetch_add(1, std::memory_order_relaxed); }
  bool is_valid(std::uint32_t announced) { return count_.load(std::memory_order_relaxed) == announced; }

 private:
  typename Atomics::template Atomic<std::uint32_t> count_;
};

constexpr int message = 1;
constexpr int other = 2;

/// The memory consists of atomics, because reading while another process writes is what this is about.
template <class Withdrawals>
struct State {
  shm::Flag<ModelAtomics> announced;
  Withdrawals withdrawals;
  std::array<ModelAtomics::Atomic<int>, 2> memory;
};

template <class Withdrawals>
Report explore_withdrawal() {
  return explore({.executions = 20'000}, [](Program& program) {
    auto& state = program.make<State<Withdrawals>>();
    program.thread("sender", [&state] {
      for (auto& each : state.memory) each.store(message, std::memory_order_relaxed);
      shm::raise(state.announced, state.withdrawals.count() + 1);
      state.withdrawals.withdraw();
      for (auto& each : state.memory) each.store(other, std::memory_order_relaxed);
    });
    program.thread("receiver", [&state] {
      ShortWatch watch;
      watch.waits_for(0);
      shm::await(state.announced, 1, watch);
      bool is_message = true;
      for (const auto& each : state.memory) is_message = each.load(std::memory_order_relaxed) == message && is_message;
      if (state.withdrawals.is_valid(0)) require(is_message, "what is valid is the message");
    });
  });
}

TEST(WithdrawalsTest, WhatIsValidIsTheMessage) {
  const auto report = explore_withdrawal<shm::Withdrawals<ModelAtomics>>();
  EXPECT_FALSE(report.failure) << report;
}

TEST(WithdrawalsTest, WithoutOrderOtherDataWouldBeTaken) {
  EXPECT_THAT(failure(explore_withdrawal<UnorderedWithdrawals<ModelAtomics>>()),
              HasSubstr("what is valid is the message"));
}

}  // namespace
}  // namespace cohort::model::test
