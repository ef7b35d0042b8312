// SPDX-License-Identifier: BSD-3-Clause
//
// Halves, and how ranks meet.
#include <cohort/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "backends/mpi/half_conversion.h"
#include "backends/mpi/process_info.h"
#include "reduce/reference.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(MpiHalves, AreWidenedExactly) {
  for (const auto& [dtype, mantissa] : {std::pair{DType::f16, 10}, std::pair{DType::bf16, 7}}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    std::vector<float> floats(halves.size());
    mpi::widen(dtype, halves.data(), floats.data(), halves.size());
    auto back = halves;
    mpi::narrow(dtype, floats.data(), back.data(), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto expected = from_half(halves[i], mantissa);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(from_half(back[i], mantissa))) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), std::bit_cast<std::uint32_t>(expected)) << i;
        ASSERT_EQ(back[i], halves[i]);
      }
    }
  }
}

TEST(MpiHalves, AreRoundedToNearestEven) {
  std::uint64_t state = 1;
  const auto random = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state >> 32U);
  };
  for (const auto& [dtype, mantissa] : {std::pair{DType::f16, 10}, std::pair{DType::bf16, 7}}) {
    for (int i = 0; i < 200'000; ++i) {
      // Any bits; half of them near the range of f16, and some that lie just between two halves.
      auto bits = random();
      if (i % 2 == 0) bits = (bits & 0x8FFFFFFFU) | 0x30000000U;
      if (i % 3 == 0) bits &= dtype == DType::f16 ? 0xFFFFF000U : 0xFFFF8000U;
      const auto value = std::bit_cast<float>(bits);
      std::uint16_t half = 0;
      mpi::narrow(dtype, &value, &half, 1);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(from_half(half, mantissa)));
      } else {
        ASSERT_EQ(half, to_half(value, mantissa)) << value;
      }
    }
  }
}

mpi::ProcessInfo info(int world_rank, const std::string& host = "a", int cpu = 0) {
  mpi::ProcessInfo made{.world_rank = world_rank, .world_size = 4, .quota = 1.5, .host = host, .version = "X 1"};
  CPU_SET(cpu, &made.cpus);
  return made;
}

TEST(MpiMeeting, EverybodyLearnsWhoTheOthersAre) {
  HashStore store;
  store.set("mpi/1", mpi::encode(info(3, "b")));
  const auto all = mpi::meet(store, info(2), 0, 2, "g", Deadline::after(5s));
  EXPECT_EQ(mpi::world_ranks_of(all, "g"), (std::vector{2, 3}));
  EXPECT_EQ(all[1].host, "b");
  EXPECT_EQ(all[1].version, "X 1");
  EXPECT_EQ(all[1].quota, 1.5);
  EXPECT_EQ(CPU_COUNT(&all[1].cpus), 1);
}

TEST(MpiMeeting, WhoDoesNotComeIsNamed) {
  HashStore store;
  EXPECT_ERROR(OperationTimeoutError, mpi::meet(store, info(2), 0, 2, "g", Deadline::after(20ms)),
               "rank 1 did not join");
  store.set("mpi/1", "nonsense");
  EXPECT_THROW(mpi::meet(store, info(2), 0, 2, "g", Deadline::after(5s)), BackendError);
}

TEST(MpiMeeting, RanksAreProcessesOfOneWorld) {
  EXPECT_ERROR(BackendError, mpi::world_ranks_of({info(1), info(1)}, "g"), "ranks 0 and 1 are both process 1");
  auto other = info(2);
  other.world_size = 3;
  EXPECT_ERROR(BackendError, mpi::world_ranks_of({info(1), other}, "g"), "not started by one mpirun");
}

TEST(MpiMeeting, ProcessorsAreCountedPerHost) {
  auto roomy = info(0, "a", 0);
  auto neighbour = info(1, "a", 1);
  roomy.quota = neighbour.quota = 0;
  EXPECT_TRUE(mpi::have_own_cpus({roomy, neighbour, info(2, "b")}, "a"));
  EXPECT_FALSE(mpi::have_own_cpus({roomy, roomy}, "a"));
  roomy.quota = 1.5;
  EXPECT_FALSE(mpi::have_own_cpus({roomy, neighbour}, "a"));
}

}  // namespace
}  // namespace cohort::test
