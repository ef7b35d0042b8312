// SPDX-License-Identifier: BSD-3-Clause
//
// Groups on c10d's groups: what they know of themselves, splits, and DDP, meshes and captured steps over them.

#include <ATen/Parallel.h>
#include <cohort/group_registry.h>
#include <cohort/torch/c10d.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/optim.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "torch/c10d/c10d_groups.h"
#include "torch/compat/features.h"
#include "torch/ddp_test.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(FromC10d, GroupsHaveOneIdOnAllRanks) {
  with_c10d(all_kinds.front(), 2, [](const C10dGroupPtr& theirs) {
    const auto group = from_c10d(theirs, 30s);
    EXPECT_EQ(group->timeout(), 30s);
    EXPECT_TRUE(group->id().starts_with("c10d-")) << group->id();
    for (const auto& each : group->all_gather_bytes(group->id())) EXPECT_EQ(each, group->id());
    EXPECT_NE(from_c10d(theirs)->id(), group->id());
    EXPECT_TRUE(group->name() == "c10d/gloo" || group->name() == "c10d/cohort") << group->name();
    EXPECT_TRUE(group->capabilities().premul_sum);
    EXPECT_TRUE(group->capabilities().user_reductions);
    EXPECT_TRUE(group->capabilities().supports(OpType::recv_any_source));
    EXPECT_ERROR(ValueError, from_c10d(theirs, 30s, {0, 1, 2}), "3 global ranks of a group of 2");
    group->barrier();
  });
  with_kind(all_kinds.front(), 1, [](const ProcessGroupPtr& group) { EXPECT_EQ(resolve_group(group->id()), group); });
  EXPECT_ERROR(ValueError, from_c10d(C10dGroupPtr()), "from_c10d: no group");
}

// --- what is built on groups

TEST(FromC10d, DdpTrainsAsOneProcessWouldOnTheWholeBatch) {
  on_all([](const ProcessGroupPtr& group) {
    expect_same_as_one_process(group, {}, 10);
    expect_same_as_one_process(group, {.bucket_cap_mb = 0.001, .find_unused_parameters = true}, 5);
  });
}

TEST(FromC10d, FunctionalCollectivesHaveGradients) {
  for (const int ranks : {1, 3}) {
    with_kind(all_kinds.front(), ranks, [](const ProcessGroupPtr& group) {
      const auto size = group->size();
      const GroupRegistryScope names;
      register_group(group->id(), group);
      const auto sum = functional::all_reduce(at::full({3}, group->rank() + 1.0), "sum", group);
      EXPECT_TRUE(at::allclose(sum, at::full({3}, size * (size + 1) / 2.0)));
      const auto mine = at::ones({2, 2}).requires_grad_();
      functional::all_gather_tensor_autograd(mine, 0, group).sum().backward();
      EXPECT_TRUE(at::equal(mine.grad(), at::full({2, 2}, static_cast<float>(size))));
    });
  }
}

TEST(FromC10d, AGroupIsAMeshOfOneDimension) {
  with_kind(all_kinds.front(), 2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {"dp"}, {.process_group = group});
    EXPECT_EQ(mesh.group(), group);
    EXPECT_EQ(mesh.local_rank(), group->rank());
    auto x = at::ones({2});
    mesh.group()->all_reduce(x);
    EXPECT_TRUE(at::equal(x, at::full({2}, 2.0F)));
  });
}

/// Rows and columns of a mesh of 2 x 2 ranks, and a product that uses both.
void expect_mesh_of_2_by_2(const DeviceMesh& mesh, int rank) {
  auto row = at::full({1}, static_cast<float>(rank));
  mesh.group("tp")->all_reduce(row);
  EXPECT_EQ(row.item<float>(), static_cast<float>(rank / 2 == 0 ? 1 : 5));
  auto column = at::full({1}, static_cast<float>(rank));
  mesh.group("dp")->all_reduce(column);
  EXPECT_EQ(column.item<float>(), static_cast<float>(rank % 2 == 0 ? 2 : 4));
  const auto x = at::arange(24, at::kDouble).reshape({4, 6});
  const auto w = at::arange(30, at::kDouble).reshape({6, 5});
  const auto product = at::matmul(distribute_tensor(x, mesh, {Shard(0), Replicate()}),
                                  distribute_tensor(w, mesh, {Replicate(), Shard(1)}));
  EXPECT_TRUE(at::equal(DTensor(product).full_tensor(), at::matmul(x, w)));
}

TEST(FromC10d, GroupsOfSomeRanksAreTheDimensionsOfAMesh) {
  for (const auto make : all_kinds) {
    at::set_num_threads(1);
    const auto store = c10::make_intrusive<c10d::HashStore>();
    as_threads(4, [&](int rank) {
      const auto group = [&](const std::string& name, std::vector<int> ranks) {
        const auto keys = c10::make_intrusive<c10d::PrefixStore>(name, store);
        const auto place = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
        const auto theirs = make(keys, place, static_cast<int>(ranks.size()), patient);
        return from_c10d(theirs, patient, std::move(ranks));
      };
      const auto world = group("world", {0, 1, 2, 3});
      const auto dp = group(fmt::format("dp{}", rank % 2), {rank % 2, rank % 2 + 2});
      const auto tp = group(fmt::format("tp{}", rank / 2), {rank / 2 * 2, rank / 2 * 2 + 1});
      expect_mesh_of_2_by_2(DeviceMesh::from_group({dp, tp}, "cpu", RankArray{{0, 1}, {2, 3}}, {"dp", "tp"}, world),
                            rank);
      world->barrier();
    });
  }
}

template <class Group>
constexpr bool can_be_split = requires(Group group) { &Group::splitGroup; };

TEST(FromC10d, GroupsSplitWhereC10dCan) {
  with_kind(make_cohort, 4, [](const ProcessGroupPtr& group) {
    EXPECT_EQ(group->capabilities().splitting, can_be_split<c10d::ProcessGroup>);
    if (!group->capabilities().splitting) {
      EXPECT_ERROR(NotSupportedError, group->split_group({0}), "make a group of these ranks with c10d");
      EXPECT_ERROR(Error, init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group}), "does not split");
      return;
    }
    const int rank = group->rank();
    const auto pair = group->split_group({1, 3});
    ASSERT_EQ(pair != nullptr, rank % 2 == 1);
    if (pair != nullptr) {
      EXPECT_EQ(pair->rank(), rank / 2);
      EXPECT_EQ(pair->global_ranks(), (std::vector{1, 3}));
      auto x = at::full({2}, static_cast<float>(rank));
      pair->all_reduce(x);
      EXPECT_TRUE(at::equal(x, at::full({2}, 4.0F)));
      for (const auto& each : pair->all_gather_bytes(pair->id())) EXPECT_EQ(each, pair->id());
    }
    if (!COHORT_TORCH_SPLIT_KEEPS_ORDER) {
      EXPECT_ERROR(NotSupportedError, group->partition({{0}, {3, 1}}), "in ascending order");
    }
    // The same ranks once more, and groups of one.
    const auto alone = group->partition({{0}, COHORT_TORCH_SPLIT_KEEPS_ORDER ? std::vector{3, 1} : std::vector{1, 3}});
    ASSERT_EQ(alone != nullptr, rank != 2);
    if (alone != nullptr) {
      auto x = at::full({1}, static_cast<float>(rank));
      alone->broadcast(x);
      EXPECT_EQ(x.item<float>(), static_cast<float>(rank == 0 ? 0 : alone->global_ranks().front()));
    }
    expect_mesh_of_2_by_2(init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group}), rank);
  });
}

TEST(FromC10d, StepsAreCapturedWithTheirCollectives) {
  for (const auto make : all_kinds) {
    with_kind(make, 2, [](const ProcessGroupPtr& group) {
      const auto train = [&](bool is_captured) {
        Mlp net;
        fill(*net, 1);
        DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.001});
        cohort::optim::SGD optimizer(ddp.parameters(), 0.1);
        int runs = 0;
        const auto step = [&](const at::Tensor& x) {
          ++runs;
          optimizer.zero_grad();
          auto loss = ddp.forward(x).pow(2).mean();
          loss.backward();
          optimizer.step();
          auto mean = loss.detach().clone();
          group->all_reduce(mean, {.op = ReduceOp::avg()});
          return mean;
        };
        auto captured = capture(step, {.watch = {ddp, optimizer}});
        std::vector<double> losses;
        for (int i = 0; i < 8; ++i) {
          const auto x = random_batch(10 * i + group->rank(), {3, 4});
          losses.push_back((is_captured ? captured(x) : step(x)).item<double>());
        }
        if (is_captured) {
          EXPECT_LT(runs, 8) << "later calls are replays";
          EXPECT_FALSE(collectives_of(captured.graph(), group->id()).empty());
        }
        return losses;
      };
      EXPECT_EQ(train(true), train(false));
    });
  }
}

}  // namespace
}  // namespace cohort::test
