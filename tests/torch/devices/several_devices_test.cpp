// SPDX-License-Identifier: BSD-3-Clause
//
// Modules whose parameters are on several devices of one type. Ranks are processes, since autograd has one thread for
// each device of a process.
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/tensor.h>

#include <optional>

#include "torch/ddp_test.h"
#include "torch/devices/host_devices.h"

namespace cohort::test {
namespace {

/// A linear layer that is made where it stays: libtorch 1.13 does not move a parameter to a device that is not its own.
struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t in, std::int64_t out, at::Device device, std::int64_t seed) {
    weight = register_parameter("weight", (random_batch(seed, {out, in}) * 0.3).to(device));
    bias = register_parameter("bias", (random_batch(seed + 1, {out}) * 0.3).to(device));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::addmm(bias, x.to(weight.device()), weight.t()); }
  at::Tensor weight, bias;
};
TORCH_MODULE(Layer);

/// Two layers on each device, and a buffer on the second; the input comes from the host.
struct PipeImpl : torch::nn::Module {
  PipeImpl(bool is_on_devices, int seed) {
    const auto place = [&](int layer) { return is_on_devices ? host_device(layer / 2) : at::Device(at::kCPU); };
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       Layer(i == 0 ? 4 : 16, i == 3 ? 2 : 16, place(i), 10 * i + 100 * seed)));
    }
    scale = register_buffer("scale", torch::full({16}, seed, torch::kDouble).to(place(3)));
  }
  at::Tensor forward(at::Tensor x, bool skips) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (skips && i == 1) continue;
      if (i == 3) x = x.to(scale.device()) * scale;
      x = layers[i]->forward(x);
      if (i + 1 < layers.size()) x = torch::tanh(x);
    }
    return x;
  }
  std::vector<Layer> layers;
  at::Tensor scale;
};
TORCH_MODULE(Pipe);

/// Trains it on shards of a batch, and another one on the host with all of it.
void expect_same_as_on_the_host(const ProcessGroupPtr& group, DdpOptions options, bool skips = false,
                                std::optional<double> max_norm = {}) {
  options.process_group = group;
  Pipe net(true, 1 + group->rank());
  DistributedDataParallel ddp(net, options);
  Pipe whole(false, 1);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD reference(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    const auto n = group->size();
    const auto x = random_batch(step, {4 * n, 4});
    const auto y = random_batch(1000 + step, {4 * n, 2});
    optimizer.zero_grad();
    const auto mine = y.narrow(0, 4 * group->rank(), 4).to(host_device(1));
    (ddp.forward(x.narrow(0, 4 * group->rank(), 4), skips) - mine).pow(2).mean().backward();
    if (max_norm) clip_grad_norm_(ddp.parameters(), *max_norm);
    optimizer.step();
    reference.zero_grad();
    (whole->forward(x, skips) - y).pow(2).mean().backward();
    if (max_norm) torch::nn::utils::clip_grad_norm_(whole->parameters(), *max_norm);
    reference.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const auto parameter = net->parameters()[i];
    EXPECT_EQ(parameter.device(), host_device(i < 4 ? 0 : 1));
    EXPECT_EQ(parameter.grad().defined(), whole->parameters()[i].grad().defined());
    EXPECT_LT(distance(parameter.cpu(), whole->parameters()[i]), 1e-10) << "parameter " << i;
  }
}

TEST(SeveralDevices, TrainAsOneProcessWould) {
  with_torch_processes(2, [](const ProcessGroupPtr& group) {
    register_host_devices();
    expect_same_as_on_the_host(group, {});
    expect_same_as_on_the_host(group, {.bucket_cap_mb = 0.001});
    expect_same_as_on_the_host(group, {.gradient_as_bucket_view = false});
    expect_same_as_on_the_host(group, {.find_unused_parameters = true}, true);
    expect_same_as_on_the_host(group, {.static_graph = true}, true);
    expect_same_as_on_the_host(group, {.batched_grad_copy = true});
    expect_same_as_on_the_host(group, {}, false, 0.05);
  });
}

TEST(SeveralDevices, AreToldFromOneInTheLog) {
  with_torch_processes(2, [](const ProcessGroupPtr& group) {
    register_host_devices();
    Pipe net(true, 1);
    const DistributedDataParallel ddp(net, {.process_group = group});
    EXPECT_EQ(ddp.logging_data().integers.at("is_multi_device_module"), 1);
    EXPECT_THROW(DistributedDataParallel(net, {.process_group = group, .device_ids = {host_device(0)}}), ValueError);
  });
}

TEST(SeveralDevices, OfWhichTheHostReadsNoMemoryAreRefused) {
  EXPECT_ERROR(ValueError, use_as_host_memory(at::kCUDA), "cuda");
  EXPECT_ERROR(ValueError, device_from(at::Device(at::kMeta)), "meta");
}

}  // namespace
}  // namespace cohort::test
