// SPDX-License-Identifier: BSD-3-Clause
//
// DistributedDataParallel's options, communication hooks and companions in captured steps: as in eager mode, bit by
// bit, or refused. What must not happen is a replay that does something else in silence.
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/post_local_sgd.h>
#include <cohort/torch/power_sgd.h>
#include <cohort/torch/sync_batch_norm.h>
#include <cohort/torch/tensor.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace ddp_ways {
namespace {

using Net = torch::nn::Sequential;
using Ddp = DistributedDataParallel<torch::nn::SequentialImpl>;

Net make_net() {
  using namespace torch::nn;
  Net net(Linear(6, 12), BatchNorm1d(12), ReLU(), Linear(12, 12), Tanh(), Linear(12, 3));
  Numbers(7).fill(net->parameters());
  return net;
}

/// A way to train that differs from the default.
struct Way {
  std::string name;
  std::function<void(DdpOptions&)> options = [](DdpOptions& /*options*/) {};
  std::function<void(Ddp&, const ProcessGroupPtr&)> prepare = [](Ddp& /*ddp*/, const ProcessGroupPtr& /*group*/) {};
  std::function<void(Net&, const ProcessGroupPtr&)> change_net = [](Net& /*net*/, const ProcessGroupPtr& /*group*/) {};
  friend void PrintTo(const Way& it, std::ostream* out) { *out << it.name; }
};

/// Fifty steps with the optimizer that `make_optimizer` makes for the parameters.
template <class MakeOptimizer>
Trained train(const Way& way, const ProcessGroupPtr& group, bool is_captured, const MakeOptimizer& make_optimizer) {
  auto net = make_net();
  way.change_net(net, group);
  DdpOptions options{.process_group = group, .bucket_cap_mb = 0.0005};
  way.options(options);
  Ddp ddp(net.ptr(), options);
  way.prepare(ddp, group);
  auto optimizer = make_optimizer(ddp.parameters());
  Trained result;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++result.runs;
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x).to(at::kFloat), y);
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}});
  Numbers numbers(group->rank());
  for (int i = 0; i < steps; ++i) {
    const auto x = numbers({5, 6});
    const auto y = numbers({5, 3});
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  }
  result.left = left_in(*net);
  if (is_captured) {
    EXPECT_LE(result.runs, 8) << step.explain();
  }
  return result;
}

Trained train(const Way& way, const ProcessGroupPtr& group, bool is_captured) {
  return train(way, group, is_captured, [](const std::vector<at::Tensor>& parameters) {
    return optim::AdamW(parameters, torch::optim::AdamWOptions(0.01));
  });
}

class CapturedDdp : public testing::TestWithParam<Way> {};

TEST_P(CapturedDdp, HasTheBitsOfEagerTraining) {
  for (const int ranks : {1, 2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      expect_same_training(train(GetParam(), group, true), train(GetParam(), group, false));
    });
  }
}

Way hook_way(std::string name, std::function<CommHook(const ProcessGroupPtr&)> make) {
  return {.name = std::move(name), .prepare = [make = std::move(make)](Ddp& ddp, const ProcessGroupPtr& group) {
            ddp.register_comm_hook(make(group));
          }};
}

/// What a user may write: a chain of steps behind the group's own Work.
CommHook chain_of_steps(const ProcessGroupPtr& group) {
  return [group](GradBucket& bucket) {
    const auto whole = bucket.buffer();
    const auto doubles = whole.to(at::kDouble);
    const auto work = group->all_reduce(buffer_of(doubles), {.async_op = true});
    return work
        .then([doubles, group](const std::vector<Buffer>& /*outputs*/) { return doubles / (3.0 * group->size()); })
        .then([whole](const at::Tensor& mean) {
          whole.copy_(mean);
          return whole;
        });
  };
}

INSTANTIATE_TEST_SUITE_P(
    Ways, CapturedDdp,
    testing::Values(
        Way{.name = "OwnGradients", .options = [](DdpOptions& it) { it.gradient_as_bucket_view = false; }},
        Way{.name = "StaticGraph", .options = [](DdpOptions& it) { it.static_graph = true; }},
        Way{.name = "BuffersOfEachRank", .options = [](DdpOptions& it) { it.broadcast_buffers = false; }},
        Way{.name = "SyncBatchNorm",
            .change_net = [](Net& net, const ProcessGroupPtr& group) { convert_sync_batch_norm(*net, group); }},
        hook_way("AllReduce", [](const ProcessGroupPtr& group) { return hooks::all_reduce(group); }),
        hook_way("Fp16", [](const ProcessGroupPtr& group) { return hooks::fp16_compress(group); }),
        hook_way("Bf16", [](const ProcessGroupPtr& group) { return hooks::bf16_compress(group); }),
        hook_way("Fp16Around",
                 [](const ProcessGroupPtr& group) { return hooks::fp16_compress(hooks::all_reduce(group)); }),
        hook_way("QuantizedPerTensor", [](const ProcessGroupPtr& group) { return hooks::quantize_per_tensor(group); }),
        hook_way("QuantizedPerChannel",
                 [](const ProcessGroupPtr& group) { return hooks::quantize_per_channel(group, 16); }),
        hook_way("None", [](const ProcessGroupPtr& /*group*/) { return hooks::noop(); }),
        hook_way("OfTheUser", chain_of_steps)),
    testing::PrintToStringParamName());

/// A captured step of a wrapper with this communication hook.
void expect_refused_hook(const ProcessGroupPtr& group, CommHook hook, const std::string& name) {
  auto net = make_net();
  Ddp ddp(net.ptr(), {.process_group = group});
  ddp.register_comm_hook(std::move(hook));
  auto step = capture(
      [&](const at::Tensor& x) {
        auto loss = ddp.forward(x).sum();
        loss.backward();
        return loss;
      },
      {.watch = {ddp}});
  EXPECT_ERROR(CaptureError, step(at::ones({5, 6})), name);
  EXPECT_THAT(step.explain(), testing::HasSubstr("counts iterations"));
}

TEST(CapturedDdpRefuses, HooksThatCountIterations) {
  for (const int ranks : {1, 2}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      const auto power = std::make_shared<PowerSgdState>(PowerSgdOptions{.process_group = group});
      expect_refused_hook(group, hooks::power_sgd(power), "power_sgd");
      expect_refused_hook(group, hooks::batched_power_sgd(power), "power_sgd");
      const auto local = std::make_shared<PostLocalSgdState>(PostLocalSgdOptions{.process_group = group});
      expect_refused_hook(group, hooks::post_local_sgd(local), "post_local_sgd");
    });
  }
}

TEST(CapturedDdpRefuses, ModelAveragers) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto net = make_net();
    PeriodicModelAverager averager({.process_group = group, .period = 2});
    auto step = capture(
        [&](const at::Tensor& x) {
          averager.average_parameters(net->parameters());
          return net->forward(x);
        },
        {.watch = {net}});
    EXPECT_ERROR(CaptureError, step(at::ones({5, 6})), "a model averager");
  });
}

TEST(CapturedDdpRefuses, LossScalesInTheStep) {
  auto net = make_net();
  optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  GradScaler scaler;
  auto step = capture(
      [&](const at::Tensor& x) {
        auto loss = net->forward(x).sum();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        return loss;
      },
      {.watch = {net, optimizer}});
  EXPECT_ERROR(CaptureError, step(at::ones({5, 6})), "GradScaler::scale()");
}

/// While forward and backward run the parameters are cast copies.
TEST(CapturedMixedPrecision, HasTheBitsOfEagerTraining) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const Way way{.name = "MixedPrecision", .options = [](DdpOptions& it) {
                    it.mixed_precision = {.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16};
                  }};
    expect_same_training(train(way, group, true), train(way, group, false));
  });
}

TEST(CapturedZeroOptimizer, HasTheBitsOfEagerTraining) {
  for (const int ranks : {1, 2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      const auto make = [&](const std::vector<at::Tensor>& parameters) {
        return ZeroOptimizer<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9),
                                                {.process_group = group});
      };
      const Way way{.name = "ZeRO"};
      expect_same_training(train(way, group, true, make), train(way, group, false, make));
    });
  }
}

/// Trains with steps inside backward and the wrapper alone watched, while the learning rate changes and is 0 at times.
template <class Inner>
Trained train_in_backward(const ProcessGroupPtr& group, bool is_captured,
                          typename OptimizerTypes<Inner>::Options options) {
  auto net = make_net();
  Ddp ddp(net.ptr(), {.process_group = group, .bucket_cap_mb = 0.0005});
  const auto zero =
      std::make_shared<ZeroOptimizer<Inner>>(ddp.parameters(), options, ZeroOptions{.process_group = group});
  ddp.register_zero_step(zero);
  Trained result;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++result.runs;
    ddp.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp}});
  Numbers numbers(group->rank());
  const auto train = [&] {
    const auto x = numbers({5, 6});
    const auto y = numbers({5, 3});
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  };
  for (int i = 0; i < 24; ++i) {
    zero->param_groups()[0].options().set_lr(i % 8 == 7 ? 0 : 0.05 / (1 + i / 8));
    train();
  }
  zero->consolidate_state(0);
  train();
  EXPECT_ERROR(Error, zero->state_dict(), "consolidate_state");
  result.left = left_in(*net);
  if (is_captured) {
    EXPECT_LT(result.runs, 20) << step.explain();
  }
  return result;
}

TEST(CapturedZeroOptimizer, StepsInBackwardWithTheRatesOfEagerTraining) {
  for (const int ranks : {1, 2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
      expect_same_training(train_in_backward<torch::optim::SGD>(group, true, sgd),
                           train_in_backward<torch::optim::SGD>(group, false, sgd));
      const torch::optim::AdamWOptions adam(0.05);
      expect_same_training(train_in_backward<optim::AdamW>(group, true, adam),
                           train_in_backward<optim::AdamW>(group, false, adam));
    });
  }
}

}  // namespace
}  // namespace ddp_ways
}  // namespace cohort::test
