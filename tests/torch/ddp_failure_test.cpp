// SPDX-License-Identifier: BSD-3-Clause
//
// Backwards that fail, other groups, and modules that are wrapped anew.
#include <cohort/torch/zero_optimizer.h>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::HasSubstr;

TEST(Ddp, WithoutHooksTheParametersTrainAlone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.remove_autograd_hooks();
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net->weight), group->rank() + 1.0);
    // And the module can be wrapped anew.
    net->zero_grad();
    DistributedDataParallel again(net, {.process_group = group});
    again.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net->weight), 1.5);
  });
}

TEST(Ddp, GoesOnWithAnotherGroupAfterAFailure) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto pair = group->split_group({0, 1});
    const auto three = group->split_group({0, 1, 2});
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    const auto step = [&] {
      net->weight.mutable_grad() = at::Tensor();
      ddp.forward(x).sum().backward();
      return grad_of(net->weight);
    };
    EXPECT_EQ(step(), 2.5);
    group->abort("a scenario");
    EXPECT_THROW(step(), Error);
    ddp.update_process_group(pair);
    EXPECT_EQ(pair != nullptr ? step() : 1.5, 1.5);
    ddp.update_process_group(three);
    if (three != nullptr) {
      EXPECT_EQ(step(), 2.0);
      EXPECT_EQ(step(), 2.0);
      EXPECT_EQ(ddp.logging_data().integer("world_size"), 3);
    }
  });
}

/// A backward of four ranks whose group is aborted while it waits; two of them go on.
template <class Net>
void expect_pair_goes_on(const ProcessGroupPtr& group, Net net, DdpOptions options, at::ScalarType type) {
  const auto pair = group->split_group({0, 1});
  const auto doomed = group->split_group({0, 1, 2, 3});
  options.process_group = doomed;
  DistributedDataParallel ddp(net, options);
  const auto x = torch::full({1}, group->rank() + 1.0, type);
  const auto step = [&] {
    for (auto& each : net->parameters()) each.mutable_grad() = at::Tensor();
    ddp.forward(x, true).sum().backward();
    return net->b.grad().template item<double>();
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(), 2.5);
  const auto y = ddp.forward(x, true);
  group->barrier();
  doomed->abort("a scenario");
  EXPECT_THROW(y.sum().backward(), Error);
  group->barrier();
  if (pair == nullptr) return;
  ddp.update_process_group(pair);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), 1.5);
  EXPECT_EQ(net->b.scalar_type(), type);
}

struct FloatBranches : torch::nn::Module {
  FloatBranches() {
    a = register_parameter("a", torch::ones({1}));
    b = register_parameter("b", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x, bool /*uses_b*/) { return a * x + b * x; }
  at::Tensor a, b;
};

TEST(DdpFailure, InBackwardLeavesAModelThatGoesOnWithAnotherGroup) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<FloatBranches>();
    expect_pair_goes_on(group, net, {}, at::kFloat);
    expect_pair_goes_on(group, std::make_shared<FloatBranches>(), {.static_graph = true}, at::kFloat);
    expect_pair_goes_on(group, std::make_shared<FloatBranches>(),
                        {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}}, at::kFloat);
    const auto delays = std::make_shared<FloatBranches>();
    expect_pair_goes_on(group, delays, {.delay_all_reduce_named_params = {{"b", delays->b}}, .delay_until = delays->b},
                        at::kFloat);
  });
}

TEST(DdpFailure, IsWhatTheNextForwardAndTheLogTell) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto x = torch::ones({1}, torch::kDouble);
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    int calls = 0;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      if (++calls == 3) throw ValueError("the third is too much");
      return completed_future(bucket.buffer());
    });
    const auto step = [&] { ddp.forward(random_batch(1, {3, 4})).sum().backward(); };
    step();
    EXPECT_ERROR(ValueError, step(), "the third");
    EXPECT_EQ(ddp.logging_data().integer("has_error"), 1);
    EXPECT_EQ(ddp.logging_data().integer("iteration"), 2);
    EXPECT_THAT(ddp.logging_data().text("error"), HasSubstr("the third is too much"));
    EXPECT_ERROR(Error, step(), "the last backward failed: the third is too much");
    ddp.update_process_group(group);
    ddp.register_comm_hook([](GradBucket& bucket) { return completed_future(bucket.buffer()); });
    EXPECT_NO_THROW(step()) << "with another hook, once";
    EXPECT_ERROR(Error, ddp.register_comm_hook([](GradBucket& bucket) { return completed_future(bucket.buffer()); }),
                 "already");
  });
}

TEST(DdpFailure, AHookWhoseFutureNeverComesIsATimeout) {
  with_torch_threads(
      1,
      [](const ProcessGroupPtr& group) {
        DistributedDataParallel ddp(Scale(), {.process_group = group});
        Promise<at::Tensor> never;
        ddp.register_comm_hook([&](GradBucket&) { return never.future(); });
        EXPECT_THROW(ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward(), OperationTimeoutError);
      },
      std::chrono::milliseconds(200));
}

TEST(DdpFailure, AModuleCanBeWrappedAnewAfterwards) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    {
      DistributedDataParallel first(net, {.process_group = group});
      first.forward(x, false).sum().backward();  // unfinished
      EXPECT_ERROR(Error, first.forward(x, true), "did not finish");
    }
    net->zero_grad(true);
    DistributedDataParallel again(net, {.process_group = group});
    for (int i = 0; i < 3; ++i) {
      again.zero_grad();
      again.forward(x, true).sum().backward();
      EXPECT_EQ(grad_of(net->b), 1.5);
    }
  });
}

TEST(DdpFailure, ARefusedOptimizerLeavesTheModelFree) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Scale(), {.process_group = group});
    const auto zero_for = [&](const std::vector<at::Tensor>& parameters) {
      return std::make_shared<ZeroOptimizer<torch::optim::SGD>>(parameters, 0.1, ZeroOptions{.process_group = group});
    };
    EXPECT_THROW(ddp.register_zero_step(zero_for({torch::ones({1}).requires_grad_()})), ValueError);
    EXPECT_NO_THROW(ddp.register_zero_step(zero_for(ddp.parameters())));
    EXPECT_ERROR(Error, ddp.register_zero_step(zero_for(ddp.parameters())), "has a ZeRO step already");
  });
}

}  // namespace
}  // namespace cohort::test
