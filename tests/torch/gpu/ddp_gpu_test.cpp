// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) DistributedDataParallel on CUDA tensors: with nccl, and with gloo through the host.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/sync_batch_norm.h>
#include <torch/nn/utils/rnn.h>

#include "backends/nccl/gpu/gpu_world.h"
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

const at::Device gpu(at::kCUDA, 0);

using DdpOn = OnTheGpuOfSize;

/// The same as on the host: shards on the GPU, beside one model that sees the whole batch.
void expect_same_as_one_process_on_gpu(const ProcessGroupPtr& group, DdpOptions options) {
  options.process_group = group;
  Mlp net(32, 4);
  fill(*net, 1 + group->rank());
  net->to(gpu);
  DistributedDataParallel ddp(net, options);
  Mlp whole(32, 4);
  fill(*whole, 1);
  whole->to(gpu);
  torch::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW reference(whole->parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 20; ++step) {
    const auto n = group->size();
    const auto x = random_batch(step, {4 * n, 4}).to(gpu);
    const auto y = random_batch(1000 + step, {4 * n, 2}).to(gpu);
    optimizer.zero_grad();
    torch::mse_loss(ddp.forward(x.narrow(0, 4 * group->rank(), 4)), y.narrow(0, 4 * group->rank(), 4)).backward();
    optimizer.step();
    reference.zero_grad();
    torch::mse_loss(whole->forward(x), y).backward();
    reference.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_LT(distance(net->parameters()[i], whole->parameters()[i]), 1e-9) << "parameter " << i;
  }
}

TEST_P(DdpOn, GpusTrainsAsOneProcessWould) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    expect_same_as_one_process_on_gpu(group, {});
    expect_same_as_one_process_on_gpu(group, {.bucket_cap_mb = 0.002});
    expect_same_as_one_process_on_gpu(group, {.gradient_as_bucket_view = false});
    expect_same_as_one_process_on_gpu(group, {.find_unused_parameters = true});
    expect_same_as_one_process_on_gpu(group, {.static_graph = true});
    expect_same_as_one_process_on_gpu(group, {.batched_grad_copy = false});
    expect_same_as_one_process_on_gpu(group, {.gradient_as_bucket_view = false, .batched_grad_copy = false});
  });
}

TEST_P(DdpOn, GpusMovesInputsAndRunsHooksAndMixedPrecision) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const double average = (group->size() + 1) / 2.0;
    for (const bool is_narrow : {false, true}) {
      Scale net(1, 4);
      net->to(gpu, torch::kFloat);
      DistributedDataParallel ddp(net, {.process_group = group, .device_ids = {gpu}});
      ddp.register_comm_hook(is_narrow ? hooks::fp16_compress(group) : hooks::all_reduce(group));
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad();
        ddp.forward(torch::full({4}, static_cast<float>(group->rank() + 1))).sum().backward();  // from the host
        EXPECT_TRUE(torch::allclose(net->weight.grad().cpu(), torch::full({4}, static_cast<float>(average))));
      }
    }
    Scale mixed(1, 4);
    mixed->to(gpu, torch::kFloat);
    DistributedDataParallel ddp(mixed,
                                {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kHalf}});
    ddp.forward(torch::full({4}, static_cast<float>(group->rank() + 1)).to(gpu)).sum().backward();
    EXPECT_EQ(mixed->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::allclose(mixed->weight.grad().cpu(), torch::full({4}, static_cast<float>(average))));
  });
}

TEST_P(DdpOn, GpusMovesNestedContainersOfTheHost) {
  using Batch = std::tuple<std::vector<at::Tensor>, std::map<std::string, at::Tensor>, double>;
  struct Net : torch::nn::Module {
    Net() { weight = register_parameter("weight", torch::ones({2})); }
    at::Tensor forward(const Batch& batch, const torch::nn::utils::rnn::PackedSequence& packed) {
      const auto& [list, named, factor] = batch;
      EXPECT_TRUE(list[0].is_cuda() && list[1].is_cuda() && named.at("x").is_cuda() && packed.data().is_cuda());
      EXPECT_TRUE(packed.batch_sizes().is_cpu()) << "as libtorch has it";
      return (weight * (list[0] + list[1] + named.at("x")) * factor).sum() + packed.data().sum();
    }
    at::Tensor weight;
  };
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Net>();
    net->to(gpu);
    DistributedDataParallel ddp(net, {.process_group = group, .device_ids = {gpu}});
    const auto x = torch::full({2}, group->rank() + 1.0, torch::kFloat);
    const auto packed = torch::nn::utils::rnn::pack_sequence({torch::ones({3, 1}), torch::ones({2, 1})});
    ddp.forward(Batch{{x, x}, {{"x", x}}, 2.0}, packed).backward();
    const auto average = (group->size() + 1) / 2.0;
    EXPECT_TRUE(torch::equal(net->weight.grad().cpu(), torch::full({2}, 6 * average, torch::kFloat)));
  });
}

// Forward on a stream of its own, backward called from another: gradients are read on that one.
TEST_P(DdpOn, GpusEndBackwardOnTheCallersStream) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    torch::nn::Sequential net;
    for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
    net->to(gpu);
    {
      const torch::NoGradGuard no_grad;
      for (auto& each : net->parameters()) each.fill_(1.0 / 1024);
    }
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 4});
    const auto side = c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(gpu);
    const double average = (group->size() + 1) / 2.0;
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad(true);
      torch::cuda::synchronize();
      at::Tensor loss;
      {
        const c10::StreamGuard beside(side);
        loss = ddp.forward(torch::full({64, 1024}, group->rank() + 1.0, torch::device(gpu))).sum();
      }
      c10::impl::VirtualGuardImpl(at::kCUDA).getStream(gpu).synchronize();
      side.synchronize();
      loss.backward();
      for (const auto& each : net->parameters()) {
        EXPECT_NEAR(each.grad().min().item<double>(), 64 * average, 1e-2) << step;
      }
    }
  });
}

TEST_P(DdpOn, GpusSyncBatchNormSeesTheWholeBatch) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const auto n = group->size();
    for (const bool first_is_empty : {false, true}) {
      // 4, 5, ... samples by rank, and once none on rank 0 where there are others.
      const auto rows_of = [&](int rank) { return first_is_empty && rank == 0 && n > 1 ? 0 : 4 + rank; };
      std::int64_t begin = 0;
      std::int64_t all_rows = 0;
      for (int rank = 0; rank < n; ++rank) {
        if (rank < group->rank()) begin += rows_of(rank);
        all_rows += rows_of(rank);
      }
      const auto rows = rows_of(group->rank());
      auto batch = random_batch(5, {all_rows, 3, 5, 5}).to(gpu).requires_grad_();
      auto part = batch.detach().narrow(0, begin, rows).clone().requires_grad_();
      const auto weights = random_batch(6, {all_rows, 3, 5, 5}).to(gpu);
      torch::nn::Sequential net(torch::nn::BatchNorm2d(3));
      net->to(gpu, torch::kDouble);
      torch::nn::Sequential whole(torch::nn::BatchNorm2d(3));
      whole->to(gpu, torch::kDouble);
      convert_sync_batch_norm(net.ptr(), group);
      const auto mine = net->forward(part);
      const auto all = whole->forward(batch);
      (mine * weights.narrow(0, begin, rows)).sum().backward();
      (all * weights).sum().backward();
      if (rows > 0) {
        EXPECT_LT(distance(mine, all.narrow(0, begin, rows)), 1e-9);
        EXPECT_LT(distance(part.grad(), batch.grad().narrow(0, begin, rows)), 1e-9);
      }
      for (const auto* const each : {"0.running_mean", "0.running_var"}) {
        EXPECT_LT(distance(net->named_buffers()[each], whole->named_buffers()[each]), 1e-9) << each;
      }
      for (const auto* const each : {"0.weight", "0.bias"}) {
        auto sum = net->named_parameters()[each].grad().clone();
        group->all_reduce(buffer_of(sum), {.stream = current_stream(sum)});
        EXPECT_LT(distance(sum, whole->named_parameters()[each].grad()), 1e-9) << each;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, DdpOn, ::testing::Values(GpuRanks{"nccl", 1}, GpuRanks{"nccl", 2}, GpuRanks{"gloo", 2}),
                         [](const auto& each) { return each.param.backend + std::to_string(each.param.size); });

}  // namespace
}  // namespace cohort::test
