// SPDX-License-Identifier: BSD-3-Clause
//
// Captured steps beside the same steps in eager mode: losses and parameters must be equal to the bit.
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "support/expect_error.h"
#include "torch/bits.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

constexpr int steps = 20;

/// The loss of each step and the parameters after the last.
struct Trained {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> parameters;
};

void expect_equal(const Trained& captured, const Trained& eager) {
  ASSERT_EQ(captured.losses.size(), eager.losses.size());
  for (std::size_t i = 0; i < eager.losses.size(); ++i) {
    EXPECT_TRUE(have_same_bits(captured.losses[i], eager.losses[i])) << "loss of step " << i;
  }
  for (std::size_t i = 0; i < eager.parameters.size(); ++i) {
    EXPECT_TRUE(have_same_bits(captured.parameters[i], eager.parameters[i])) << "parameter " << i;
  }
}

template <class Net, class MakeOptimizer>
Trained train(bool is_captured, const std::function<Net()>& make_net, const MakeOptimizer& make_optimizer,
              const std::function<std::pair<at::Tensor, at::Tensor>(int)>& batch) {
  torch::manual_seed(1);
  auto net = make_net();
  auto optimizer = make_optimizer(net->parameters());
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {net}});
  Trained result;
  for (int i = 0; i < steps; ++i) {
    const auto [x, y] = batch(i);
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  }
  if (is_captured) {
    EXPECT_GT(step.graph().nodes.size(), 10U);
    EXPECT_NE(step.explain().find("replayed"), std::string::npos);
  }
  for (const auto& each : net->parameters()) result.parameters.push_back(each.detach().clone());
  for (const auto& each : net->buffers()) result.parameters.push_back(each.detach().clone());
  return result;
}

std::pair<at::Tensor, at::Tensor> batch_of(int i, std::vector<std::int64_t> in, std::vector<std::int64_t> out) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + i));
  return {torch::randn(in), torch::randn(out)};
}

using Sequential = torch::nn::Sequential;

TEST(Capture, TrainsAnMlpAsEagerDoes) {
  const std::function<Sequential()> net = [] {
    return Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
  };
  const auto sgd = [](std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  };
  const auto batch = [](int i) { return batch_of(i, {5, 8}, {5, 4}); };
  expect_equal(train<Sequential>(true, net, sgd, batch), train<Sequential>(false, net, sgd, batch));
}

TEST(Capture, TrainsAConvolutionWithBatchNormAndDropout) {
  const std::function<Sequential()> net = [] {
    return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)), torch::nn::BatchNorm2d(4),
                      torch::nn::ReLU(), torch::nn::Dropout(0.3), torch::nn::Flatten(), torch::nn::Linear(4 * 36, 3));
  };
  const auto sgd = [](std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.05));
  };
  const auto batch = [](int i) { return batch_of(i, {4, 2, 6, 6}, {4, 3}); };
  expect_equal(train<Sequential>(true, net, sgd, batch), train<Sequential>(false, net, sgd, batch));
}

TEST(Capture, RefusesWhatChangesFromStepToStep) {
  torch::nn::Linear net(4, 2);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1));
  auto step = capture(
      [&](const at::Tensor& x) {
        optimizer.zero_grad();
        auto loss = net->forward(x).sum();
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.watch = {net}});
  const auto x = torch::randn({3, 4});
  EXPECT_ERROR(CaptureError, for (int i = 0; i < 10; ++i) step(x), "recording");
}

TEST(Capture, RefusesToReadValues) {
  auto step = capture([&](const at::Tensor& x) { return x.sum().item<float>() > 0 ? x + 1 : x - 1; });
  EXPECT_ERROR(CaptureError, step(torch::ones({2})), "host_read");
}

TEST(Capture, GradientsAreWhereTheyBelong) {
  torch::nn::Linear net(4, 2);
  auto step = capture(
      [&](const at::Tensor& x) {
        net->zero_grad();
        auto loss = net->forward(x).pow(2).sum();
        loss.backward();
        return loss;
      },
      {.watch = {net}});
  for (int i = 0; i < 5; ++i) {
    const auto x = torch::randn({3, 4});
    step(x);
    const auto gradient = net->weight.grad().clone();
    net->zero_grad();
    net->forward(x).pow(2).sum().backward();
    EXPECT_TRUE(at::equal(gradient, net->weight.grad())) << i;
  }
}

/// The generator is the caller's own: ranks that are threads share libtorch's.
Sequential small_net(bool has_buffers) {
  Sequential net(torch::nn::Linear(8, 16));
  if (has_buffers) net->push_back(torch::nn::BatchNorm1d(16));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(16, 4));
  auto generator = at::detail::createCPUGenerator(7);
  const at::NoGradGuard no_grad;
  for (auto& each : net->parameters()) each.copy_(at::randn(each.sizes(), generator));
  return net;
}

Trained train_ddp(const ProcessGroupPtr& group, bool has_buffers, bool is_captured) {
  auto net = small_net(has_buffers);
  DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp}});
  Trained result;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group->rank()));
  for (int i = 0; i < steps; ++i) {
    const auto x = at::randn({5, 8}, generator);
    const auto y = at::randn({5, 4}, generator);
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  }
  for (const auto& each : net->parameters()) result.parameters.push_back(each.detach().clone());
  for (const auto& each : net->buffers()) result.parameters.push_back(each.detach().clone());
  if (is_captured) {
    std::size_t collectives = 0;
    for (const auto& node : step.graph().nodes) collectives += node.kind == GraphNode::Kind::collective ? 1U : 0U;
    EXPECT_GE(collectives, has_buffers ? 3U : 2U);
    EXPECT_NE(step.explain().find("replayed 1"), std::string::npos) << step.explain();
  }
  return result;
}

TEST(Capture, TrainsUnderDataParallelism) {
  for (const int ranks : {2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      for (const bool has_buffers : {false, true}) {
        expect_equal(train_ddp(group, has_buffers, true), train_ddp(group, has_buffers, false));
      }
    });
  }
}

/// A step that sets gradients to none does not have two sets of them at once, and neither does a replay.
TEST(Capture, LetsReplacedGradientsGoBeforeTheReplay) {
  torch::nn::Linear net(4, 2);
  bool is_free = false;
  c10::weak_intrusive_ptr<c10::TensorImpl> before(at::ones({1}).getIntrusivePtr());
  auto step = capture(
      [&](const at::Tensor& x) {
        net->weight.mutable_grad().reset();
        net->bias.mutable_grad().reset();
        on_host([&] { is_free = before.expired(); });
        net->forward(x).sum().backward();
      },
      {.watch = {net}});
  for (int i = 0; i < 5; ++i) {
    if (i > 0) before = c10::weak_intrusive_ptr<c10::TensorImpl>(net->weight.grad().getIntrusivePtr());
    step(at::full({3, 4}, static_cast<double>(i)));
    EXPECT_TRUE(is_free) << i;
    EXPECT_TRUE(at::equal(net->weight.grad(), at::full({2, 4}, 3.0 * i))) << i;
  }
  EXPECT_NE(step.explain().find("replayed 2"), std::string::npos) << step.explain();
}

TEST(Capture, RefusesToSearchForUnusedParameters) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(small_net(false), {.process_group = group, .find_unused_parameters = true});
    auto step = capture([&](const at::Tensor& x) { ddp.forward(x).sum().backward(); }, {.watch = {ddp}});
    EXPECT_ERROR(CaptureError, step(at::ones({2, 8})), "find_unused_parameters");
  });
}

}  // namespace
}  // namespace cohort::test
