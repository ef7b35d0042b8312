// SPDX-License-Identifier: BSD-3-Clause
//
// Optimizers that are attached to parameters and step while backward computes, against those that step after it.
#include <cohort/torch/capture.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/optimizer_in_backward.h>
#include <cohort/torch/parallelize.h>
#include <cohort/torch/zero_optimizer.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "torch/bits.h"
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;
using torch::optim::SGDOptions;

std::unique_ptr<torch::optim::Optimizer> make_sgd(const Parameters& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

template <class Net>
void expect_same_bits(const Net& a, const Net& b) {
  const auto one = a->named_parameters();
  const auto other = b->named_parameters();
  for (const auto& each : one) EXPECT_TRUE(have_same_bits(each.value(), other[each.key()])) << each.key();
}

void expect_no_gradients(const torch::nn::Module& net) {
  for (const auto& each : net.named_parameters()) EXPECT_FALSE(each.value().grad().defined()) << each.key();
}

/// A net whose optimizer is attached, and the same net beside it whose optimizer steps after backward.
class Twins {
 public:
  Twins(const ProcessGroupPtr& group, DdpOptions options, const MakeOptimizer& make, bool attaches_before) {
    options.process_group = group;
    fill(*net, 1);
    fill(*plain, 1);
    optimizer = make(net->parameters());
    if (attaches_before) in_backward.emplace(*optimizer);
    ddp.emplace(net, options);
    reference.emplace(plain, options);
    if (!attaches_before) in_backward.emplace(*optimizer);
    after = make(plain->parameters());
  }
  void iterate(int seed) {
    const auto x = random_batch(10 * seed + ddp->process_group()->rank(), {3, 4});
    ddp->forward(x).pow(2).mean().backward();
    after->zero_grad();
    reference->forward(x).pow(2).mean().backward();
    after->step();
  }

  Mlp net{16, 4};
  Mlp plain{16, 4};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::optional<OptimizerInBackward> in_backward;
  std::optional<DistributedDataParallel<MlpImpl>> ddp;
  std::optional<DistributedDataParallel<MlpImpl>> reference;
  std::unique_ptr<torch::optim::Optimizer> after;
};

TEST(DdpInBackward, HasTheBitsOfStepsAfterBackward) {
  const std::vector<MakeOptimizer> optimizers{
      make_sgd,
      [](const Parameters& all) {
        return std::make_unique<torch::optim::AdamW>(all, torch::optim::AdamWOptions(0.01).amsgrad(true));
      },
      [](const Parameters& all) { return std::make_unique<torch::optim::RMSprop>(all, 0.01); },
      [](const Parameters& all) { return std::make_unique<torch::optim::Adagrad>(all, 0.01); },
      [](const Parameters& all) { return std::make_unique<optim::Adam>(all, 0.01); },
      [](const Parameters& all) { return std::make_unique<optim::SGD>(all, SGDOptions(0.1).momentum(0.9)); },
      [](const Parameters& all) { return std::make_unique<optim::RMSprop>(all, 0.01); },
      [](const Parameters& all) { return std::make_unique<optim::Rprop>(all); }};
  std::vector<DdpOptions> ways(5);
  for (auto& each : ways) each.bucket_cap_mb = 0.001;
  ways[1].gradient_as_bucket_view = false;
  ways[2].static_graph = true;
  ways[3].find_unused_parameters = true;
  ways[4].batched_grad_copy = true;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    for (const auto& make : optimizers) {
      for (const auto& options : ways) {
        for (const bool attaches_before : {true, false}) {
          Twins twins(group, options, make, attaches_before);
          for (int i = 0; i < 4; ++i) {
            twins.iterate(i);
            expect_no_gradients(*twins.net);
            for (auto* each : {twins.optimizer.get(), twins.after.get()}) {
              each->param_groups()[0].options().set_lr(0.01 / (i + 1));
            }
          }
          expect_same_bits(twins.net, twins.plain);
        }
      }
    }
  });
}

TEST(DdpInBackward, StepsWhileBackwardComputesAndFreesGradients) {
  for (const bool is_ours : {false, true}) {
    with_torch_threads(2, [&](const ProcessGroupPtr& group) {
      Mlp net(16, 4);
      fill(*net, 1);
      std::unique_ptr<torch::optim::Optimizer> optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
      if (is_ours) optimizer = std::make_unique<optim::SGD>(net->parameters(), 0.1);
      const OptimizerInBackward in_backward(*optimizer);
      DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
      const auto iterate = [&](int seed) { ddp.forward(random_batch(seed, {3, 4})).pow(2).mean().backward(); };
      iterate(1);
      iterate(2);  // the buckets have been rebuilt
      const auto last = net->linears[3]->weight;
      const auto before = last.detach().clone();
      const auto version = last._version();
      // A barrier ends after all reductions that were launched before it.
      net->linears[1]->weight.register_hook([&](const at::Tensor&) { group->barrier(); });
      int looks = 0;
      net->linears[0]->weight.register_hook([&](const at::Tensor&) {
        ++looks;
        EXPECT_FALSE(last.grad().defined()) << "used and gone";
        EXPECT_FALSE(last.equal(before)) << "stepped";
        EXPECT_GT(last._version(), version);
        EXPECT_FALSE(net->linears[0]->weight.grad().defined()) << "still to come";
      });
      iterate(3);
      EXPECT_EQ(looks, 1);
      expect_no_gradients(*net);
    });
  }
}

TEST(DdpInBackward, ModulesThatAreNotWrappedStepAsSoonAsAGradientIsThere) {
  Mlp net(16, 4);
  Mlp plain(16, 4);
  fill(*net, 1);
  fill(*plain, 1);
  const auto optimizer = make_sgd(net->parameters());
  const auto after = make_sgd(plain->parameters());
  std::optional<OptimizerInBackward> in_backward(*optimizer);
  std::size_t most = 0;
  for (const auto& parameter : net->parameters()) {
    parameter.register_hook([&](const at::Tensor&) {
      std::size_t defined = 0;
      for (const auto& each : net->parameters()) defined += each.grad().defined() ? 1 : 0;
      most = std::max(most, defined);
    });
  }
  for (int i = 0; i < 3; ++i) {
    const auto x = random_batch(i, {3, 4});
    net->forward(x).pow(2).mean().backward();
    expect_no_gradients(*net);
    after->zero_grad();
    plain->forward(x).pow(2).mean().backward();
    after->step();
  }
  EXPECT_EQ(most, 0U) << "never two at a time";
  expect_same_bits(net, plain);
  in_backward.reset();
  const auto before = net->linears[0]->weight.detach().clone();
  net->forward(random_batch(9, {3, 4})).sum().backward();
  EXPECT_TRUE(net->linears[0]->weight.grad().defined()) << "nothing is attached any more";
  EXPECT_TRUE(net->linears[0]->weight.equal(before));
}

TEST(DdpInBackward, CanBeAttachedAndDetachedBetweenSteps) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Twins twins(group, {.bucket_cap_mb = 0.001}, make_sgd, true);
    twins.iterate(1);
    twins.in_backward.reset();
    const auto x = random_batch(group->rank(), {3, 4});
    for (int i = 0; i < 2; ++i) {
      twins.optimizer->zero_grad();
      twins.ddp->forward(x).pow(2).mean().backward();
      EXPECT_TRUE(twins.net->linears[0]->weight.grad().defined());
    }
    twins.optimizer->step();
    twins.after->zero_grad();
    twins.reference->forward(x).pow(2).mean().backward();
    twins.after->step();
    twins.optimizer->zero_grad();
    twins.in_backward.emplace(*twins.optimizer);
    twins.iterate(2);
    expect_same_bits(twins.net, twins.plain);
    // Nobody averages any more, so the gradients are this rank's own.
    twins.ddp.reset();
    twins.net->forward(x).sum().backward();
    expect_no_gradients(*twins.net);
    EXPECT_FALSE(have_same_bits(twins.net->linears[0]->weight, twins.plain->linears[0]->weight));
  });
}

TEST(DdpInBackward, SeveralOptimizersStepParametersOfTheirOwn) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    struct Three : torch::nn::Module {
      Scale a{1}, b{1}, c{1};
      Three() {
        register_module("a", a);
        register_module("b", b);
        register_module("c", c);
      }
      at::Tensor forward(const at::Tensor& x) { return a->forward(x) + b->forward(x) + c->forward(x); }
    };
    const auto net = std::make_shared<Three>();
    torch::optim::SGD first({net->a->weight}, 1.0);
    torch::optim::SGD second({net->b->weight}, 2.0);
    const OptimizerInBackward steps_first(first);
    DistributedDataParallel ddp(net, {.process_group = group});
    const OptimizerInBackward steps_second(second, {.keep_gradients = true});
    EXPECT_EQ(ddp.logging_data().text("comm_hook"), "");
    ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble)).sum().backward();
    EXPECT_EQ(net->a->weight.item<double>(), 1 - 1.5);
    EXPECT_EQ(net->b->weight.item<double>(), 1 - 3.0);
    EXPECT_EQ(net->c->weight.item<double>(), 1);
    EXPECT_EQ(ddp.logging_data().text("comm_hook"), "optimizer in backward");
    EXPECT_FALSE(net->a->weight.grad().defined());
    EXPECT_EQ(grad_of(net->b->weight), 1.5) << "kept";
    EXPECT_EQ(grad_of(net->c->weight), 1.5) << "of no optimizer: it stays";
    torch::optim::SGD third({net->c->weight, net->a->weight}, 1.0);
    EXPECT_ERROR(Error, OptimizerInBackward{third}, "another one steps a parameter already");
  });
}

TEST(DdpInBackward, LeavesUnusedParametersAlone) {
  for (const bool skips : {false, true}) {
    with_torch_threads(2, [skips](const ProcessGroupPtr& group) {
      const DdpOptions options{
          .process_group = group, .find_unused_parameters = true, .skip_all_reduce_unused_params = skips};
      Branches net;
      Branches plain;
      torch::optim::SGD optimizer(net->parameters(), SGDOptions(0.1).momentum(0.9));
      torch::optim::SGD after(plain->parameters(), SGDOptions(0.1).momentum(0.9));
      const OptimizerInBackward in_backward(optimizer);
      DistributedDataParallel ddp(net, options);
      DistributedDataParallel reference(plain, options);
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      for (const int user : {0, 2, 1, 2, 0}) {  // of b: a rank, or none
        const bool uses_b = skips ? user != 2 : user == group->rank();
        const auto before = net->b.item<double>();
        ddp.forward(x, uses_b).sum().backward();
        optim::zero_grad(after);  // a gradient of zeros would be stepped, with the momentum
        reference.forward(x, uses_b).sum().backward();
        after.step();
        if (user == 2) {
          EXPECT_EQ(net->b.item<double>(), before);
        }
        expect_same_bits(net, plain);
        expect_no_gradients(*net);
      }
    });
  }
}

TEST(DdpInBackward, StepsWhatNoSyncHasAccumulated) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const bool is_view : {true, false}) {
      Twins twins(group, {.bucket_cap_mb = 0.001, .gradient_as_bucket_view = is_view}, make_sgd, true);
      for (int i = 0; i < 3; ++i) {
        const auto before = twins.net->linears[0]->weight.detach().clone();
        const auto x = random_batch(10 * i + group->rank(), {3, 4});
        twins.after->zero_grad();
        {
          const auto local = twins.ddp->no_sync();
          const auto other = twins.reference->no_sync();
          twins.ddp->forward(x).pow(2).mean().backward();
          twins.reference->forward(x).pow(2).mean().backward();
        }
        EXPECT_TRUE(twins.net->linears[0]->weight.grad().defined());
        EXPECT_TRUE(twins.net->linears[0]->weight.equal(before)) << "not stepped yet";
        twins.ddp->forward(x + 1).pow(2).mean().backward();
        twins.reference->forward(x + 1).pow(2).mean().backward();
        twins.after->step();
        expect_no_gradients(*twins.net);
      }
      expect_same_bits(twins.net, twins.plain);
    }
  });
}

TEST(DdpInBackward, StepsPartsOfDistributedTensors) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    const auto make = [&] {
      torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
      net->to(torch::kDouble);
      fill(*net, 3);
      parallelize_module(*net, mesh["tp"], {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
      return net;
    };
    const auto net = make();
    const auto plain = make();
    {
      torch::optim::SGD too_early(net->parameters(), 0.1);
      const OptimizerInBackward in_backward(too_early);
      EXPECT_ERROR(Error, DistributedDataParallel(net, {.device_mesh = mesh["dp"]}), "attach them after wrapping");
    }
    DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"]});
    DistributedDataParallel reference(plain, {.device_mesh = mesh["dp"]});
    const auto optimizer = make_sgd(ddp.parameters());
    const auto after = make_sgd(reference.parameters());
    const OptimizerInBackward in_backward(*optimizer);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = distribute_tensor(random_batch(10 * i + mesh.local_rank("dp"), {3, 4}), mesh["tp"]);
      ddp.forward(x).pow(2).mean().backward();
      after->zero_grad();
      reference.forward(x).pow(2).mean().backward();
      after->step();
    }
    expect_same_bits(net, plain);
  });
}

TEST(DdpInBackward, IsCaptured) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const MakeOptimizer make = [](const Parameters& all) { return std::make_unique<optim::AdamW>(all, 0.01); };
    Twins twins(group, {.bucket_cap_mb = 0.001}, make, true);
    int calls = 0;
    auto step = capture(
        [&](const at::Tensor& x) {
          ++calls;
          auto loss = twins.ddp->forward(x).pow(2).mean();
          loss.backward();
          return loss.detach();
        },
        {.watch = {*twins.ddp, *twins.optimizer}});
    for (int i = 0; i < 8; ++i) {
      const auto x = random_batch(10 * i + group->rank(), {3, 4});
      step(x);
      twins.after->zero_grad();
      twins.reference->forward(x).pow(2).mean().backward();
      twins.after->step();
    }
    EXPECT_LT(calls, 8) << "the others were replays";
    expect_same_bits(twins.net, twins.plain);
    // A recording would step it.
    twins.in_backward.reset();
    const auto before = twins.net->linears[0]->weight.detach().clone();
    step(random_batch(1, {3, 4}));
    EXPECT_TRUE(twins.net->linears[0]->weight.equal(before));
  });
}

TEST(DdpInBackward, RefusesWhatNeedsAllGradientsOrStepsThemselves) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = random_batch(1, {3, 4});
    Mlp net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto refuse = [&](const DdpOptions& options, const char* why, const auto& prepare) {
      DistributedDataParallel ddp(net, options);
      const OptimizerInBackward in_backward(optimizer);
      prepare(ddp);
      EXPECT_ERROR(Error, ddp.forward(x), why);
      EXPECT_ERROR(Error, ddp.forward(x), why) << "again";
    };
    refuse({.process_group = group}, "communication hook",
           [&](auto& ddp) { ddp.register_comm_hook(hooks::all_reduce(group)); });
    refuse({.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kFloat}}, "mixed_precision",
           [](auto&) {});
    refuse({.process_group = group}, "ZeRO step", [&](auto& ddp) {
      ddp.register_zero_step(std::make_shared<ZeroOptimizer<torch::optim::SGD>>(ddp.parameters(), 0.1,
                                                                                ZeroOptions{.process_group = group}));
    });
    refuse({.process_group = group,
            .delay_all_reduce_named_params = {{"layer0.weight", net->linears[0]->weight}},
            .delay_until = net->linears[1]->weight},
           "delay_all_reduce_named_params", [](auto&) {});
    DistributedDataParallel ddp(net, {.process_group = group});
    {
      const OptimizerInBackward in_backward(optimizer);
      EXPECT_ERROR(Error, clip_grad_norm_(net->parameters(), 1),
                   "clip_grad_norm_: a parameter has an OptimizerInBackward");
      GradScaler scaler;
      EXPECT_ERROR(Error, scaler.step(optimizer), "GradScaler: a parameter has an OptimizerInBackward");
    }
    torch::optim::LBFGS lbfgs(net->parameters());
    EXPECT_ERROR(ValueError, OptimizerInBackward{lbfgs}, "LBFGS");
    ZeroOptimizer<torch::optim::SGD> zero(net->parameters(), 0.1, {.process_group = group});
    EXPECT_ERROR(ValueError, OptimizerInBackward{zero}, "register_zero_step");
  });
}

}  // namespace
}  // namespace cohort::test
