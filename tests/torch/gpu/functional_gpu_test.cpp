// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Functional collectives on CUDA tensors: with nccl, and with gloo through the host.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cohort/torch/functional.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "backends/nccl/gpu/gpu_world.h"
#include "torch/functional/async_tensor.h"
#include "torch/functional/on_group.h"
#include "torch/functional/values.h"

namespace cohort::test {
namespace {

using FunctionalOn = OnTheGpuOfSize;

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.to(at::Device(at::kCUDA, 0));
}

TEST_P(FunctionalOn, GpusGiveTheValuesOfAllRanks) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto rank = group->rank();
    const auto all = all_values(ranks, {2 * ranks, 3});
    const auto sum = at::stack(all).sum(0);
    const auto mine = on_gpu(all[static_cast<std::size_t>(rank)]);

    const auto reduced = functional::all_reduce(mine, "sum", group);
    EXPECT_NE(functional::find_async(reduced), nullptr);
    EXPECT_TRUE(reduced.is_cuda());
    EXPECT_TRUE(reduced.view({-1}).cpu().equal(sum.flatten()));
    EXPECT_TRUE(functional::all_gather_tensor(mine, 1, group).cpu().equal(at::cat(all, 1)));
    EXPECT_TRUE(functional::reduce_scatter_tensor(mine, "sum", 0, group).cpu().equal(sum.narrow(0, 2 * rank, 2)));
    EXPECT_TRUE(functional::broadcast(mine, ranks - 1, group).cpu().equal(all.back()));
    std::vector<at::Tensor> rows;
    for (const auto& each : all) rows.push_back(each.narrow(0, 2 * rank, 2));
    EXPECT_TRUE(functional::all_to_all_single(mine, {}, {}, group).cpu().equal(at::cat(rows)));
    EXPECT_TRUE(functional::shard_dim_alltoall(mine, 1, 0, group).cpu().equal(at::cat(rows, 1)));
    EXPECT_TRUE(functional::on_group::all_reduce(mine, ReduceOp::Kind::max, group).cpu().equal(all.back()));
    const auto both = functional::all_reduce_coalesced({mine, mine + 1}, "sum", group);
    EXPECT_TRUE(both[1].cpu().equal(sum + ranks));
    EXPECT_TRUE(mine.cpu().equal(all[static_cast<std::size_t>(rank)]));
    functional::all_reduce_(mine, "sum", group);
    EXPECT_TRUE(functional::wait_tensor(mine).cpu().equal(sum));
  });
}

TEST_P(FunctionalOn, GpusHaveGradients) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto rank = group->rank();
    const auto mine = on_gpu(values_of(rank, {2, 3})).requires_grad_();
    const auto gathered = functional::all_gather_tensor_autograd(mine, 0, group);
    (gathered * on_gpu(values_of(rank, gathered.sizes()))).sum().backward();
    const auto weights = at::stack(all_values(ranks, {2 * ranks, 3})).sum(0);
    EXPECT_TRUE(mine.grad().cpu().equal(weights.narrow(0, 2 * rank, 2)));
  });
}

/// The result is used on another stream than the one that the collective was issued on.
TEST_P(FunctionalOn, GpusWaitOnTheStreamOfTheFirstUse) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto mine = on_gpu(at::full({1 << 22}, static_cast<float>(group->rank() + 1)));
    const auto sum = functional::all_reduce(mine, "sum", group);
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::StreamGuard other(guard.getStreamFromGlobalPool(mine.device(), /*isHighPriority=*/false));
    const auto expected = static_cast<float>(group->size() * (group->size() + 1)) / 2;
    EXPECT_TRUE((sum == expected).all().item<bool>());
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, FunctionalOn,
                         ::testing::Values(GpuRanks{"nccl", 1}, GpuRanks{"nccl", 2}, GpuRanks{"nccl", 4},
                                           GpuRanks{"gloo", 2}),
                         [](const auto& each) { return each.param.backend + std::to_string(each.param.size); });

}  // namespace
}  // namespace cohort::test
