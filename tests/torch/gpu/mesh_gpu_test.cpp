// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Device meshes over groups of CUDA memory: a group for each dimension, slices and other shapes.
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include "torch/gpu/gpu_mesh.h"

namespace cohort::test {
namespace {

using MeshOn = OnTheGpuOfSize;

/// Each rank gives a bit of its own, so that the sum tells who took part.
void expect_sum_over(const ProcessGroupPtr& group, const std::vector<int>& members, int rank) {
  int expected = 0;
  for (const auto each : members) expected += 1 << each;
  auto bit = at::full({5}, 1 << rank, at::TensorOptions(at::kInt).device(the_gpu));
  group->all_reduce(buffer_of(bit), {.stream = current_stream(bit)});
  EXPECT_EQ(bit.min().item<int>(), expected);
  EXPECT_EQ(bit.max().item<int>(), expected);
}

TEST_P(MeshOn, GpusHasAGroupForEachDimension) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto rank = group->rank();
    const auto mesh = gpu_mesh(group, {group->size() / 2, 2}, {"dp", "tp"});
    EXPECT_EQ(mesh.device_type(), "cuda");
    EXPECT_EQ(*mesh.coordinate(), (std::vector<std::int64_t>{rank / 2, rank % 2}));
    for (const std::string name : {"dp", "tp"}) {
      const auto& one = mesh.group(name);
      EXPECT_EQ(one->rank(), mesh.local_rank(name));
      EXPECT_EQ(one->size(), mesh.size(name));
      expect_sum_over(one, one->global_ranks(), rank);
      // The same through a slice, as an operator of libtorch.
      const auto slice = mesh[name];
      EXPECT_EQ(slice.group(), one);
      const auto value = at::full({3}, rank + 1.0, at::TensorOptions(at::kDouble).device(the_gpu));
      double expected = 0;
      for (const auto each : one->global_ranks()) expected += each + 1.0;
      EXPECT_EQ(functional::all_reduce(value, "sum", slice).max().item<double>(), expected);
    }
    EXPECT_EQ(mesh.group("tp")->global_ranks(), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
  });
}

TEST_P(MeshOn, GpusTakesOtherShapes) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto line = gpu_mesh(group, {group->size()}, {"world"});
    const auto grid = line.unflatten("world", {2, group->size() / 2}, {"dp", "tp"});
    expect_sum_over(grid.group("dp"), grid.group("dp")->global_ranks(), group->rank());
    const auto flat = grid.flatten("all");
    EXPECT_EQ(flat.group()->size(), group->size());
    expect_sum_over(flat.group(), group->global_ranks(), group->rank());
    expect_sum_over(grid.group("all"), group->global_ranks(), group->rank());
    // Ranks in reverse order: the first of each group is the last rank.
    std::vector<int> reversed(group->global_ranks().rbegin(), group->global_ranks().rend());
    const DeviceMesh backwards("cuda", reversed, {}, {.process_group = group});
    EXPECT_EQ(backwards.group()->rank(), group->size() - 1 - group->rank());
    auto value = at::full({2}, group->rank(), at::TensorOptions(at::kInt).device(the_gpu));
    backwards.group()->broadcast(buffer_of(value), {.root = 0, .stream = current_stream(value)});
    EXPECT_EQ(value.max().item<int>(), group->size() - 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, MeshOn, ::testing::Values(GpuRanks{"nccl", 2}, GpuRanks{"nccl", 4}), name_of);

}  // namespace
}  // namespace cohort::test
