// SPDX-License-Identifier: BSD-3-Clause
//
// Meshes over fake groups: of any size, as any rank, and without a collective.
#include <cohort/torch/mesh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "torch/mesh/mesh_ranks.h"

namespace cohort::test {
namespace {

TEST(MeshOfFakeGroups, AnyRankOfHundredThousand) {
  constexpr int world = 100'000;
  for (const int rank : {0, 1, 54'321, world - 1}) {
    const ProcessGroupGuard scope(fake_group(rank, world));
    // Groups of few and of many ranks: 50,000 of 2 and 2 of 50,000.
    const auto mesh = init_device_mesh("cpu", {world / 8, 4, 2}, {"dp", "pp", "tp"});
    EXPECT_EQ(*mesh.coordinate(), (Sizes{rank / 8, rank / 2 % 4, rank % 2}));
    EXPECT_EQ(mesh.group("dp")->size(), world / 8);
    EXPECT_EQ(mesh.group("tp")->global_ranks(), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
    expect_sound(mesh);
    const auto flat = mesh[{"dp", "tp"}].flatten();
    EXPECT_EQ(flat.size(), world / 4);
    EXPECT_EQ(flat.local_rank(), rank / 8 * 2 + rank % 2);
    const auto divided = mesh.unflatten("dp", {125, 100}, {"a", "b"});
    EXPECT_EQ(divided.local_rank("a"), rank / 800);
    EXPECT_EQ(divided.local_rank("b"), rank / 8 % 100);
    EXPECT_EQ(mesh, init_device_mesh("cpu", {world / 8, 4, 2}, {"dp", "pp", "tp"}));
  }
}

TEST(MeshOfFakeGroups, InAnyOrder) {
  std::vector<int> ranks(1000);
  std::iota(ranks.rbegin(), ranks.rend(), 0);
  const ProcessGroupGuard scope(fake_group(7, 1000));
  const DeviceMesh mesh("cpu", RankArray({10, 100}, ranks));
  EXPECT_EQ(*mesh.coordinate(), (Sizes{9, 92}));
  expect_sound(mesh);
}

TEST(MeshOfFakeGroups, IssueNoCollective) {
  const ProcessGroupGuard scope(fake_group(3, 8, {{"error_on_collective", true}}));
  const auto mesh = init_device_mesh("cuda", {2, 4}, {"dp", "tp"});
  mesh.unflatten("tp", {2, 2}, {"a", "b"});
  mesh.flatten();
  std::vector<int> x{1};
  EXPECT_ERROR(BackendError, mesh.group("tp")->all_reduce(x), "error_on_collective") << "options are inherited";
}

TEST(MeshOfFakeGroups, OverridesAreFakeToo) {
  const ProcessGroupGuard scope(fake_group(3, 8));
  const auto mesh =
      init_device_mesh("cpu", {2, 4}, {"dp", "tp"},
                       {.backend_override = {{"tp", {.options = Options{{"simulate_uniform_ranks", true}}}}}});
  EXPECT_EQ(sum_among(mesh.group("tp"), 5), 20);
  EXPECT_EQ(sum_among(mesh.group("dp"), 5), 5);
  EXPECT_EQ(mesh.group("tp")->rank(), 3);
  EXPECT_ERROR(Error, init_device_mesh("cpu", {8}, {}, {.backend_override = {{0, {.backend = "shm"}}}}),
               "do not exist");
}

TEST(MeshOfFakeGroups, RanksOutside) {
  const ProcessGroupGuard scope(fake_group(9, 10));
  const auto mesh = init_device_mesh("cpu", {3, 3}, {"a", "b"});
  EXPECT_EQ(mesh.coordinate(), nullptr);
  EXPECT_EQ(mesh.rank(), 9);
  EXPECT_EQ(mesh.flatten().coordinate(), nullptr);
}

}  // namespace
}  // namespace cohort::test
