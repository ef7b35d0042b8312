// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Distributed tensors of CUDA memory: how they are made and moved, random numbers, and streams.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/tensor.h>

#include <string>

#include "torch/dtensor/laid_out.h"
#include "torch/gpu/gpu_mesh.h"

namespace cohort::test {
namespace {

using DTensorOn = OnTheGpuOfSize;

at::Tensor counting(const std::vector<std::int64_t>& sizes) {
  return at::arange(c10::multiply_integers(sizes), at::TensorOptions(at::kDouble).device(the_gpu)).view(sizes);
}

std::string text_of(const Placements& from, const Placements& to) {
  return to_string(from) + " -> " + to_string(to);
}

TEST_P(DTensorOn, GpusAreMadeAndRead) {
  on_gpu_meshes(GetParam(), [](const DeviceMesh& mesh) {
    const auto whole = counting({7, 3});
    const Placements by_rows(static_cast<std::size_t>(mesh.ndim()), Shard(0));
    // The values of the first rank count.
    const auto rows = distribute_tensor(whole + 1000.0 * mesh.rank(), mesh, by_rows);
    EXPECT_TRUE(rows.is_cuda());
    EXPECT_TRUE(rows.to_local().is_cuda());
    EXPECT_TRUE(at::equal(rows.full_tensor(), whole));
    const auto replicated = distribute_tensor(whole + 1000.0 * mesh.rank(), mesh);
    EXPECT_TRUE(at::equal(replicated.to_local(), whole));

    const auto part = at::full({2, 3}, static_cast<double>(mesh.rank()), whole.options());
    const auto joined = DTensor::from_local(part, mesh, by_rows, {.run_check = true});
    EXPECT_EQ(joined.sizes(), at::IntArrayRef({2 * mesh.size(), 3}));
    EXPECT_EQ(joined.to_local().data_ptr(), part.data_ptr());
    EXPECT_TRUE(
        at::equal(joined.full_tensor().select(1, 0), at::arange(mesh.size(), whole.options()).repeat_interleave(2)));
    EXPECT_TRUE(at::equal(dtensor::ones({5, 3}, mesh, by_rows, whole.options()).full_tensor(),
                          at::ones_like(whole).slice(0, 0, 5)));
    EXPECT_EQ(rows.sum().item<double>(), 210);
  });
}

TEST_P(DTensorOn, GpusAreRedistributedBetweenAllPlacements) {
  on_gpu_meshes(GetParam(), [](const DeviceMesh& mesh) {
    for (const auto& sizes : {std::vector<std::int64_t>{12, 12}, {5, 7}, {3, 1}}) {
      const auto whole = counting(sizes);
      const auto weights = (whole * 0.3).cos();
      for (const auto& from : combinations({whole}, mesh.ndim(), true, 100, 1)) {
        for (const auto& to : combinations({whole}, mesh.ndim(), false, 100, 1)) {
          auto leaf = laid_out(whole, mesh, from[0]).detach();
          leaf.requires_grad_();
          const auto moved = DTensor(leaf).redistribute(to[0]);
          const auto expected = distribute_tensor(whole, mesh, to[0], {.src_data_rank = std::nullopt}).to_local();
          ASSERT_EQ(moved.to_local().sizes(), expected.sizes()) << text_of(from[0], to[0]);
          EXPECT_TRUE(at::allclose(moved.to_local().detach(), expected)) << text_of(from[0], to[0]);
          (moved * laid_out(weights, mesh, to[0])).sum().backward();
          EXPECT_TRUE(at::allclose(DTensor(leaf.grad()).full_tensor(), weights)) << text_of(from[0], to[0]);
          if (HasFailure()) return;
        }
      }
    }
  });
}

TEST_P(DTensorOn, GpusDrawEqualNumbersWhereElementsAreEqual) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto mesh = gpu_mesh(group, {group->size() / 2, 2}, {"dp", "tp"});
    // The numbers of all ranks, row by row.
    const auto of_all = [&](const at::Tensor& local) {
      auto all = at::empty({group->size(), local.numel()}, local.options());
      const auto own = local.contiguous();
      group->all_gather(buffer_of(all), const_buffer_of(own), {.stream = current_stream(all)});
      return all;
    };
    const auto options = at::TensorOptions(at::kFloat).device(the_gpu);
    for (const bool is_seeded : {false, true}) {
      if (is_seeded) dtensor::manual_seed(7, mesh);
      const auto drawn = dtensor::rand({2000}, mesh, {Replicate(), Shard(0)}, options);
      const auto numbers = of_all(drawn.to_local());
      EXPECT_FALSE(at::equal(numbers[0], numbers[1])) << "different elements";
      if (group->size() == 4) {
        EXPECT_TRUE(at::equal(numbers[0], numbers[2])) << "replicas";
        EXPECT_TRUE(at::equal(numbers[1], numbers[3])) << "replicas";
      }
      const auto dropped = DTensor(at::dropout(dtensor::ones({2000}, mesh, {}, options), 0.25, true));
      const auto kept = of_all(dropped.to_local());
      for (std::int64_t rank = 1; rank < group->size(); ++rank) EXPECT_TRUE(at::equal(kept[0], kept[rank]));
      EXPECT_NEAR(kept.mean().item<double>(), 1, 0.1);
      const auto parts = of_all(
          DTensor(at::dropout(dtensor::ones({2000}, mesh, {Replicate(), Shard(0)}, options), 0.5, true)).to_local());
      EXPECT_FALSE(at::equal(parts[0], parts[1])) << "each part drops other elements";
    }
    // The gradient knows what was dropped.
    auto leaf = dtensor::ones({2000}, mesh, {Replicate(), Shard(0)}, options.requires_grad(true));
    const auto dropped = at::dropout(leaf, 0.5, true);
    dropped.sum().backward();
    EXPECT_TRUE(at::equal(DTensor(leaf.grad()).to_local(), DTensor(dropped.detach()).to_local()));
  });
}

/// On a stream of the user's, behind work that takes a while there. Operators use the results at once, and the host
/// waits for nothing before the values are compared.
TEST_P(DTensorOn, GpusFollowTheCurrentStream) {
  on_gpu_meshes(GetParam(), [](const DeviceMesh& mesh) {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const auto options = at::TensorOptions(at::kFloat).device(the_gpu);
    const auto busy = at::full({2048, 2048}, 1.0 / 2048, options);
    const Placements by_rows(static_cast<std::size_t>(mesh.ndim()), Shard(0));
    const Placements by_columns(static_cast<std::size_t>(mesh.ndim()), Shard(1));
    const Placements partial(static_cast<std::size_t>(mesh.ndim()), Partial());
    const auto ranks = static_cast<float>(mesh.size());
    for (int round = 0; round < 3; ++round) {
      const c10::StreamGuard beside(guard.getStreamFromGlobalPool(the_gpu, /*isHighPriority=*/false));
      auto late = busy;
      for (int i = 0; i < 20; ++i) late = at::mm(late, busy);  // every element stays 1 / 2048
      const auto whole = late.mul(2048.0F * static_cast<float>(round + 1));
      const auto rows = distribute_tensor(whole, mesh, by_rows, {.src_data_rank = std::nullopt});
      const auto columns = rows.redistribute(by_columns);
      const auto everything = (columns * 2).sum();
      const auto summed = DTensor::from_local(whole, mesh, partial).redistribute(by_rows);
      const auto gathered = DTensor(summed + rows).full_tensor();
      EXPECT_NEAR(everything.item<float>(), 2.0F * 2048 * 2048 * static_cast<float>(round + 1), 1e4);
      EXPECT_TRUE(at::allclose(gathered, at::full_like(gathered, (ranks + 1) * static_cast<float>(round + 1)), 1e-3));
    }
  });
}

/// An asynchronous collective is issued on one stream, and its result is used first on another.
TEST_P(DTensorOn, GpusWaitOnTheStreamOfTheFirstUse) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto mesh = gpu_mesh(group, {group->size()});
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const auto whole = counting({1000, 1001});
    for (const Placement& from : Placements{Shard(0), Shard(1), Partial()}) {
      for (const Placement& to : Placements{Replicate(), Shard(0), Shard(1)}) {
        if (from == to) continue;
        const auto expected = distribute_tensor(whole, mesh, {to}, {.src_data_rank = std::nullopt}).to_local();
        guard.getStream(the_gpu).synchronize();
        const auto moved = laid_out(whole, mesh, {from}).redistribute({to}, {.async_op = true});
        const c10::StreamGuard other(guard.getStreamFromGlobalPool(the_gpu, /*isHighPriority=*/false));
        EXPECT_TRUE(at::allclose(moved.to_local(), expected)) << text_of({from}, {to});
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, DTensorOn,
                         ::testing::Values(GpuRanks{"nccl", 2}, GpuRanks{"nccl", 4}, GpuRanks{"gloo", 2}), name_of);

}  // namespace
}  // namespace cohort::test
