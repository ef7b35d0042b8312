// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/process_info.h"

#include <cohort/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

mpi::ProcessInfo info(int world_rank, const std::string& host = "a", int cpu = 0) {
  mpi::ProcessInfo made{.world_rank = world_rank, .world_size = 4, .quota = 1.5, .host = host, .version = "X 1"};
  CPU_SET(cpu, &made.cpus);
  return made;
}

TEST(MpiProcessInfo, EverybodyLearnsWhoTheOthersAre) {
  HashStore store;
  store.set("mpi/1", mpi::encode(info(3, "b")));
  const auto all = mpi::exchange_process_info(store, info(2), 0, 2, "g", Deadline::after(5s));
  EXPECT_EQ(mpi::world_ranks_of(all, "g"), (std::vector{2, 3}));
  EXPECT_EQ(all[1].host, "b");
  EXPECT_EQ(all[1].version, "X 1");
  EXPECT_EQ(all[1].quota, 1.5);
  EXPECT_EQ(CPU_COUNT(&all[1].cpus), 1);
}

TEST(MpiProcessInfo, ARankThatDoesNotJoinIsNamed) {
  HashStore store;
  EXPECT_ERROR(OperationTimeoutError, mpi::exchange_process_info(store, info(2), 0, 2, "g", Deadline::after(20ms)),
               "rank 1 did not join in time");
  store.set("mpi/1", "nonsense");
  EXPECT_THROW(mpi::exchange_process_info(store, info(2), 0, 2, "g", Deadline::after(5s)), BackendError);
}

TEST(MpiProcessInfo, RanksAreProcessesOfOneWorld) {
  EXPECT_ERROR(BackendError, mpi::world_ranks_of({info(1), info(1)}, "g"), "ranks 0 and 1 are both process 1");
  auto other = info(2);
  other.world_size = 3;
  EXPECT_ERROR(BackendError, mpi::world_ranks_of({info(1), other}, "g"), "not started by one mpirun");
}

TEST(MpiProcessInfo, ProcessorsAreCountedPerHost) {
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
