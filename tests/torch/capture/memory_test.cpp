// SPDX-License-Identifier: BSD-3-Clause
//
// Memory that a captured step shares with its caller: a replay must find it where the recording did, or record again,
// and autograd must know what it has written.
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/optim.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <tuple>
#include <vector>

#include "support/expect_error.h"
#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace captured_memory {
namespace {

using testing::HasSubstr;

/// The parameters after these steps of training towards an anchor, which is the weight itself at first.
std::vector<at::Tensor> train_towards(bool is_captured) {
  torch::nn::Linear net(3, 3);
  Numbers(7).fill(net->parameters());
  optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto body = [&](const at::Tensor& anchor, const at::Tensor& x) {
    optimizer.zero_grad();
    auto loss = net->forward(x).pow(2).sum() + (net->weight - anchor).pow(2).sum();
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {net, optimizer}});
  Numbers numbers(1);
  for (int i = 0; i < 6; ++i) {
    const auto x = numbers({2, 3});
    is_captured ? step(net->weight.detach(), x) : body(net->weight.detach(), x).detach();
  }
  const auto anchor = net->weight.detach().clone();
  for (int i = 0; i < 6; ++i) {
    const auto x = numbers({2, 3});
    is_captured ? step(anchor, x) : body(anchor, x).detach();
  }
  if (is_captured) {
    EXPECT_THAT(step.explain(), HasSubstr("argument 1 was in memory that the step uses by itself as well, and is not"));
  }
  return copies_of({net->weight, net->bias, anchor});
}

TEST(CapturedMemory, MayBeAParameterAndAnArgument) {
  const auto captured = train_towards(true);
  const auto eager = train_towards(false);
  for (std::size_t i = 0; i < eager.size(); ++i) expect_same_bits(captured[i], eager[i], std::to_string(i));
}

TEST(CapturedMemory, OfAnArgumentMayBecomeThatOfATensorOfTheStep) {
  const auto kept = at::ones({3});
  auto step = capture([&](const at::Tensor& x) {
    const auto before = x + 0;
    kept.mul_(2);
    return before + x;
  });
  const auto other = at::full({3}, 5.0);
  for (int i = 0; i < 4; ++i) expect_same_bits(step(other), at::full({3}, 10.0), "another tensor");
  for (int i = 0; i < 4; ++i) {
    const auto before = kept.clone();
    expect_same_bits(step(kept), before + before * 2, "the step's own");
  }
  EXPECT_THAT(step.explain(), HasSubstr("is in memory that the step uses by itself as well, and was not"));
}

/// Gradients that the user has put somewhere else are not in DDP's buckets any more.
TEST(CapturedMemory, OfGradientsIsThatOfBucketsOrNot) {
  const auto run = [](const ProcessGroupPtr& group, bool is_captured) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
    Numbers(7).fill(net->parameters());
    DistributedDataParallel ddp(net, {.process_group = group});
    optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
    const auto body = [&](const at::Tensor& x) {
      optimizer.zero_grad(/*set_to_none=*/false);
      auto loss = ddp.forward(x).pow(2).sum();
      loss.backward();
      optimizer.step();
      return loss;
    };
    auto step = capture(body, {.watch = {ddp, optimizer}});
    Numbers numbers(group->rank());
    for (int i = 0; i < 12; ++i) {
      if (i == 8) {
        for (auto& each : net->parameters()) each.mutable_grad() = each.grad().clone();
      }
      const auto x = numbers({3, 4});
      is_captured ? step(x) : body(x).detach();
    }
    if (is_captured) {
      EXPECT_THAT(step.explain(), HasSubstr("a bucket"));
    }
    return left_in(*net);
  };
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto captured = run(group, true);
    const auto eager = run(group, false);
    for (std::size_t i = 0; i < eager.size(); ++i) expect_same_bits(captured[i], eager[i], std::to_string(i));
  });
}

/// A backward that has saved something before the step, which the step then writes.
template <class Step>
void expect_noticed(Step&& step, const at::Tensor& saved, const char* what) {
  SCOPED_TRACE(what);
  for (int i = 0; i < 4; ++i) step();
  const auto weight = at::ones_like(saved).requires_grad_();
  const auto product = (weight * saved).sum();
  step();
  EXPECT_ERROR(c10::Error, product.backward(), "modified by an inplace operation");
}

TEST(CapturedMemory, ThatAReplayWritesHasAnotherVersion) {
  const auto x = at::ones({4});
  auto on_argument = capture([](const at::Tensor& y) { y.mul_(2); });
  expect_noticed([&] { on_argument(x); }, x, "an argument");
  auto on_view = capture([](const at::Tensor& y) { y.narrow(0, 1, 2).mul_(2); });
  expect_noticed([&] { on_view(x); }, x, "an argument, through a view");

  const auto kept = at::ones({4});
  auto on_kept = capture([&](const at::Tensor& y) { kept.narrow(0, 0, 2).copy_(y.narrow(0, 0, 2)); });
  expect_noticed([&] { on_kept(x); }, kept, "a tensor of the step, through a view");

  torch::nn::Linear net(4, 1);
  net->weight.mutable_grad() = at::ones_like(net->weight);
  auto on_gradient = capture([&](const at::Tensor& y) { (net->forward(y) * 1).sum().backward(); }, {.watch = {net}});
  net->bias.mutable_grad() = at::ones_like(net->bias);
  expect_noticed([&] { on_gradient(x); }, net->weight.grad(), "a gradient");
}

/// Another object than the recording's, without history.
TEST(CapturedMemory, OfResultsThatExistedBefore) {
  const auto kept = at::eye(3);
  auto step = capture([&](const at::Tensor& x) {
    kept.add_(x);
    return std::tuple(kept, x);
  });
  const auto x = at::ones({3, 3}).requires_grad_();
  for (int i = 1; i <= 5; ++i) {
    auto [result, argument] = step(x);
    expect_same_bits(result, at::eye(3) + i, "call " + std::to_string(i));
    EXPECT_TRUE(result.is_alias_of(kept));
    EXPECT_FALSE(argument.requires_grad());
    EXPECT_TRUE(argument.is_alias_of(x));
    result.unsqueeze_(0);
    argument.t_();
  }
  EXPECT_EQ(kept.dim(), 2);
}

TEST(CapturedMemory, OfTheHostThatEndsWithTheStepIsRefused) {
  auto step = capture([](const at::Tensor& x) {
    std::array<float, 3> weights{1, 2, 3};
    return x * at::from_blob(weights.data(), {3});
  });
  const auto x = at::ones({3});
  EXPECT_ERROR(
      CaptureError,
      {
        for (int i = 0; i < 3; ++i) step(x);
      },
      "host_write");
}

/// autograd gives a parameter its gradient without an operator.
TEST(CapturedGradients, OfParametersThatNobodyWatchesAreRefused) {
  torch::nn::Linear net(3, 1);
  const auto body = [&](const at::Tensor& x) {
    net->zero_grad(/*set_to_none=*/true);
    auto loss = net->forward(x).sum();
    loss.backward();
    return loss;
  };
  auto unwatched = capture(body);
  EXPECT_ERROR(CaptureError, unwatched(at::ones({2, 3})), "the gradient of");
  auto watched = capture(body, {.watch = {net}});
  for (int i = 0; i < 4; ++i) watched(at::ones({2, 3}));
  expect_same_bits(net->weight.grad(), at::full({1, 3}, 2.0), "watched");
}

TEST(CapturedStepsInSteps, ArePartOfTheOuterOne) {
  torch::nn::Linear net(3, 3);
  Numbers(7).fill(net->parameters());
  optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  int runs = 0;
  auto inner = capture(
      [&](const at::Tensor& x) {
        ++runs;
        optimizer.zero_grad();
        auto loss = net->forward(x).pow(2).sum();
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.watch = {net, optimizer}});
  auto outer = capture([&](const at::Tensor& x) { return inner(x) * 2; }, {.watch = {net, optimizer}});
  double last = 1e9;
  for (int i = 0; i < 10; ++i) {
    const auto loss = outer(at::ones({2, 3})).item<double>();
    EXPECT_LT(loss, last) << "the inner step trains, call " << i;
    last = loss;
  }
  EXPECT_LE(runs, 4) << outer.explain();
  EXPECT_EQ(inner.recordings(), 0U);
  inner(at::ones({2, 3}));
  EXPECT_EQ(inner.recordings(), 1U) << "by itself it is captured by itself";
}

TEST(CapturedNumbers, OfOtherTypesAreOtherRecordings) {
  auto step = capture([](const auto& factor, const at::Tensor& x) { return x * factor; });
  const auto x = at::ones({2}, at::kLong);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(2, x).scalar_type(), at::kLong);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(2.0, x).scalar_type(), at::kFloat);
  EXPECT_THAT(step.explain(), HasSubstr("argument 1, 2, was a number of another type"));
}

TEST(CapturedRefusals, CannotBeSwallowed) {
  auto step = capture([](const at::Tensor& x) {
    try {
      if (x.sum().item<float>() > 100) return x;
    } catch (const std::exception&) {
      // A step that logs, and goes on whatever happens.
    }
    return x + 1;
  });
  EXPECT_ERROR(CaptureError, step(at::ones({2})), "host_read");
}

/// Two ranks exchange messages in a step, and the others know nothing of it.
TEST(CapturedMessages, ConcernTheirTwoRanksAlone) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    if (group->rank() < 2) {
      const int peer = 1 - group->rank();
      auto step = capture([&](const at::Tensor& x) {
        const auto theirs = at::empty_like(x);
        const auto sent = group->send(x, peer, {.tag = 7, .async_op = true});
        group->recv(theirs, peer, {.tag = 7});
        sent.wait();
        return theirs * 2;
      });
      for (int i = 0; i < 5; ++i) {
        expect_same_bits(step(at::full({3}, static_cast<double>(group->rank() + i))), at::full({3}, 2.0 * (peer + i)),
                         "call " + std::to_string(i));
      }
      EXPECT_THAT(to_string(step.graph()), HasSubstr("peer=" + std::to_string(peer)));
    }
    group->barrier();
  });
}

/// What is waited for in the step was started before it.
TEST(CapturedDistributedTensors, MayBeInFlightWhenTheStepBegins) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto shard = DTensor::from_local(at::full({2}, static_cast<double>(group->rank())), mesh, {Shard(0)});
    const auto whole = shard.redistribute({Replicate()}, {.async_op = true});
    auto step = capture([&](const at::Tensor& x) { return x + whole.to_local(); });
    for (int i = 0; i < 4; ++i) {
      expect_same_bits(step(at::ones({4})), at::tensor({1.0F, 1.0F, 2.0F, 2.0F}), "call " + std::to_string(i));
    }
  });
}

}  // namespace
}  // namespace captured_memory
}  // namespace cohort::test
