// SPDX-License-Identifier: BSD-3-Clause
//
// Data-parallel training on a mesh, and meshes out of tensors.
#include <cohort/torch/mesh.h>
#include <cohort/torch/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torch/ddp_test.h"
#include "torch/mesh/mesh_ranks.h"

namespace cohort::test {
namespace {

/// The gradients of one step on data of this rank.
std::vector<at::Tensor> gradients_of_step(const DdpOptions& options, int rank) {
  // Ranks that are threads share torch's random numbers.
  const auto numbers = [](at::IntArrayRef sizes, double first) {
    return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kDouble) + first).view(sizes);
  };
  Mlp net;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& each : net->parameters()) each.copy_(numbers(each.sizes(), 0.5));
  }
  DistributedDataParallel ddp(net, options);
  ddp.forward(numbers({5, 4}, 1.0 + rank)).pow(2).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const auto& each : ddp.parameters()) gradients.push_back(each.grad().clone());
  return gradients;
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i;
}

class DdpOnMesh : public ::testing::TestWithParam<Ranks> {};

TEST_P(DdpOnMesh, HasTheGradientsOfItsGroup) {
  at::set_num_threads(1);
  GetParam().run([](const ProcessGroupPtr& pg) {
    const auto line = init_device_mesh("cpu", {pg->size()}, {}, {.process_group = pg});
    expect_same_bits(gradients_of_step({.device_mesh = line}, pg->rank()),
                     gradients_of_step({.process_group = pg}, pg->rank()));
    if (pg->size() % 2 != 0) return;
    // A dimension of a bigger mesh: ranks of the other copies have no part in it.
    const auto mesh = init_device_mesh("cpu", {pg->size() / 2, 2}, {"dp", "tp"}, {.process_group = pg});
    DistributedDataParallel ddp(Mlp(), {.device_mesh = mesh["dp"]});
    EXPECT_EQ(ddp.process_group(), mesh.group("dp"));
    const auto on_mesh = gradients_of_step({.device_mesh = mesh["dp"]}, pg->rank());
    expect_same_bits(on_mesh, gradients_of_step({.process_group = mesh.group("dp")}, pg->rank()));
    if (pg->size() == 4) {
      const auto of_all = gradients_of_step({.process_group = pg}, pg->rank());
      EXPECT_FALSE(on_mesh[0].equal(of_all[0])) << "half of the ranks, other gradients";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, DdpOnMesh,
                         ::testing::Values(threads(1), threads(2), threads(3), threads(4), processes(2), processes(4)),
                         ::testing::PrintToStringParamName());

TEST(DdpRefusesMeshes, WithAGroupOrOfSeveralDimensions) {
  with_torch_threads(2, [](const ProcessGroupPtr& pg) {
    const auto mesh = init_device_mesh("cpu", {2, 1}, {"dp", "tp"}, {.process_group = pg});
    EXPECT_ERROR(Error, DistributedDataParallel(Mlp(), {.process_group = pg, .device_mesh = mesh["dp"]}),
                 "exclude each other");
    EXPECT_ERROR(Error, DistributedDataParallel(Mlp(), {.device_mesh = mesh}), "DeviceMesh(cpu, dp: 2, tp: 1");
    const auto first = init_device_mesh("cpu", {1}, {}, {.process_group = pg});
    if (pg->rank() == 1) {
      EXPECT_ERROR(Error, DistributedDataParallel(Mlp(), {.device_mesh = first}), "rank 1 is not in");
    }
  });
}

TEST(MeshRankArray, OfTensors) {
  EXPECT_EQ(RankArray::copy_of(torch::arange(4).view({2, 2})), (RankArray{{0, 1}, {2, 3}}));
  EXPECT_EQ(RankArray::copy_of(torch::arange(4, torch::kInt).view({2, 2}).t()), (RankArray{{0, 2}, {1, 3}}));
  EXPECT_ERROR(TypeError, RankArray::copy_of(torch::ones({2})), "f32");
}

}  // namespace
}  // namespace cohort::test
