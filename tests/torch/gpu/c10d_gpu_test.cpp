// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) PyTorch's ProcessGroupNCCL as a group of Cohort's: operations ordered on a stream, what the library sends from
// host to host over it, and training.
#include <cohort/torch/c10d.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/tensor.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "torch/gpu/gpu_mesh.h"

namespace cohort::test {
namespace {

using FromC10dOn = OnTheGpuOfSize;

ProcessGroupPtr over_nccl(const StorePtr& store, int rank, int size) {
  const auto theirs = to_c10d(store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(theirs, rank, size);
  const auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(theirs, rank, size);
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, nccl);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  return from_c10d(group, patient);
}

TEST_P(FromC10dOn, GpusOrdersOperationsOnTheCurrentStream) {
  const int size = GetParam().size;
  on_one_gpu(size, [&](int rank, const StorePtr& store) {
    const auto pg = over_nccl(store, rank, size);
    const auto options = at::TensorOptions(at::kFloat).device(the_gpu);
    auto x = at::full({1000}, rank + 1.0, options);
    pg->all_reduce(x, {.stream = current_stream(x)});
    EXPECT_EQ(x.min().item<float>(), size * (size + 1) / 2.0F);
    auto y = at::full({10}, rank, options);
    pg->broadcast(y, {.root = size - 1, .stream = current_stream(y)});
    EXPECT_EQ(y.max().item<float>(), static_cast<float>(size - 1));
    auto all = at::empty({size * 10}, options);
    pg->all_gather(all, at::full({10}, rank, options), {.stream = current_stream(all)});
    EXPECT_EQ(all[0].item<float>(), 0.0F);
    EXPECT_EQ(all[-1].item<float>(), static_cast<float>(size - 1));
    auto part = at::empty({10}, options);
    pg->reduce_scatter(part, at::ones({size * 10}, options), {.stream = current_stream(part)});
    EXPECT_EQ(part.min().item<float>(), static_cast<float>(size));
    auto z = at::ones({1 << 20}, options);
    auto work = pg->all_reduce(z, {.async_op = true, .stream = current_stream(z)});
    work.wait();
    EXPECT_EQ(z.max().item<float>(), static_cast<float>(size));
    pg->barrier();
    EXPECT_EQ(pg->all_gather_bytes(std::string(static_cast<std::size_t>(rank), 'x')).back().size(),
              static_cast<std::size_t>(size - 1));
  });
}

TEST_P(FromC10dOn, GpusTrainsAsOneProcessWould) {
  const int size = GetParam().size;
  on_one_gpu(size, [&](int rank, const StorePtr& store) {
    const auto pg = over_nccl(store, rank, size);
    const auto make = [] {
      torch::manual_seed(1);
      torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
      net->to(the_gpu);
      return net;
    };
    const auto train = [&](auto& module, const auto& forward, std::int64_t from, std::int64_t count) {
      torch::optim::SGD optimizer(module->parameters(), 0.1);
      torch::manual_seed(2);
      for (int step = 0; step < 5; ++step) {
        const auto x = torch::randn({4 * size, 16}).to(the_gpu);
        optimizer.zero_grad();
        forward(x.narrow(0, from, count)).square().mean().backward();
        optimizer.step();
      }
    };
    auto net = make();
    DistributedDataParallel ddp(net, {.process_group = pg});
    train(
        net, [&](const at::Tensor& x) { return ddp.forward(x); }, 4 * rank, 4);
    auto alone = make();
    train(
        alone, [&](const at::Tensor& x) { return alone->forward(x); }, 0, 4 * size);
    const auto ours = net->parameters();
    const auto theirs = alone->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-4, 1e-6));
    pg->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, FromC10dOn, ::testing::Values(GpuRanks{"nccl", 1}, GpuRanks{"nccl", 2}), name_of);

}  // namespace
}  // namespace cohort::test
