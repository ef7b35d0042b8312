// SPDX-License-Identifier: BSD-3-Clause
//
// What of a DDP wrapper is guarded.
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/optimizer_in_backward.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <ostream>

#include "torch/capture/guards_support.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Ddp = DistributedDataParallel<torch::nn::LinearImpl>;

/// Gradients stay: what is guarded of them is the same before each step.
void step(Ddp& ddp) {
  ddp.forward(at::ones({2, 4})).sum().backward();
}

struct DdpCase {
  std::string name;
  std::function<void(Ddp&)> change;
  std::string failure;
  friend void PrintTo(const DdpCase& it, std::ostream* out) { *out << it.name; }
};

class DdpGuards : public testing::TestWithParam<DdpCase> {};

TEST_P(DdpGuards, FailWhenSomethingChanged) {
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = fake_group()});
  const auto guards = guards_of({ddp});
  EXPECT_EQ(failure_of(guards), nothing);
  GetParam().change(ddp);
  EXPECT_EQ(failure_of(guards), GetParam().failure);
}

/// Every rank keeps its own gradients.
CommHook local_hook() {
  return [](GradBucket& bucket) {
    Promise<at::Tensor> promise;
    promise.set_value(bucket.buffer());
    return promise.future();
  };
}

INSTANTIATE_TEST_SUITE_P(
    Guards, DdpGuards,
    testing::Values(
        DdpCase{"NoGradients",
                [](Ddp& ddp) {
                  ddp.forward(at::ones({2, 4})).sum();
                },
                "DDP: a backward is still to come, and was not when the step was recorded"},
        DdpCase{"Module", [](Ddp& ddp) { ddp.module()->eval(); },
                "module was in training mode and is in evaluation mode"},
        DdpCase{"StaticGraph", [](Ddp& ddp) { ddp.set_static_graph(); }, "DDP: set_static_graph() was called"},
        DdpCase{"Sink", [](Ddp& ddp) { ddp.set_sink_clone(false); }, "DDP: set_sink_clone() was called"},
        DdpCase{"BufferHook",
                [](Ddp& ddp) { ddp.register_buffer_hook([](const auto&) { return std::vector<Future<void>>(); }); },
                "DDP: another buffer hook was registered"},
        DdpCase{"CommHook", [](Ddp& ddp) { ddp.register_comm_hook(local_hook()); },
                "DDP: another communication hook was registered"},
        DdpCase{"OptimizerInBackward",
                [](Ddp& ddp) {
                  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
                  const OptimizerInBackward in_backward(optimizer);
                },
                "an optimizer in backward was attached or detached"},
        DdpCase{"NoHooks", [](Ddp& ddp) { ddp.remove_autograd_hooks(); }, "DDP: remove_autograd_hooks() was called"}),
    [](const auto& it) { return it.param.name; });

TEST(DdpGuardsOfOneWrapper, TellNoSync) {
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = fake_group()});
  const auto synced = guards_of({&ddp});
  auto scope = std::make_unique<ddp::NoSync>(ddp.no_sync());
  EXPECT_EQ(failure_of(synced), "DDP: the step is in no_sync() and was not");
  const auto local = guards_of({&ddp});
  EXPECT_EQ(failure_of(local), nothing);
  scope.reset();
  EXPECT_EQ(failure_of(synced), nothing);
  EXPECT_EQ(failure_of(local), "DDP: the step was recorded in no_sync() and is not");
}

TEST(DdpGuardsOfOneWrapper, SettleOnceTheBucketsAreRebuilt) {
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = fake_group(), .bucket_cap_mb = 1e-5});
  const auto first = guards_of({ddp});
  step(ddp);
  EXPECT_EQ(failure_of(first), "DDP: the buckets are to be rebuilt");
  const auto second = guards_of({ddp});
  step(ddp);
  EXPECT_EQ(failure_of(second), "DDP: the buckets were rebuilt");
  const auto settled = guards_of({ddp});
  step(ddp);
  EXPECT_EQ(failure_of(settled), nothing);
}

TEST(DdpGuardsOfOneWrapper, SettleOnceAStaticGraphIsLearned) {
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = fake_group(), .static_graph = true});
  for (const auto& each : ddp.parameters()) each.mutable_grad() = at::zeros_like(each);
  const auto first = guards_of({ddp});
  step(ddp);
  EXPECT_EQ(failure_of(first), "DDP: the first iteration of the static graph is over");
  for (int i = 0; i < 2; ++i) step(ddp);
  const auto settled = guards_of({ddp});
  step(ddp);
  EXPECT_EQ(failure_of(settled), nothing);
}

TEST(DdpGuardsOfOneWrapper, TakeTheGroupByIdentity) {
  const auto group = fake_group();
  const auto other = fake_group();
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = group});
  const auto guards = guards_of({ddp});
  ddp.update_process_group(other);
  EXPECT_EQ(failure_of(guards), "DDP's group was " + group->id() + " and is " + other->id());
  ddp.update_process_group(group);
  EXPECT_EQ(failure_of(guards), "DDP: the buckets were rebuilt") << "in the memory of the new group";
}

TEST(DdpGuardsOfOneWrapper, SeeAFailedBackward) {
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = fake_group()});
  ddp.register_comm_hook([](GradBucket&) -> Future<at::Tensor> { throw Error("no network"); });
  for (const auto& each : ddp.parameters()) each.mutable_grad() = at::zeros_like(each);
  const auto guards = guards_of({ddp});
  EXPECT_ANY_THROW(step(ddp));
  EXPECT_EQ(failure_of(guards), "DDP: the last backward failed");
}

TEST(DdpGuardsOfOneWrapper, SeeWrappersInsideOfModules) {
  struct Outer : torch::nn::Module {
    std::shared_ptr<Ddp> inner = register_module(
        "inner", std::make_shared<Ddp>(torch::nn::Linear(4, 4), DdpOptions{.process_group = fake_group()}));
  };
  const auto outer = std::make_shared<Outer>();
  const auto guards = guards_of({outer});
  EXPECT_THAT(guards.parameters()[0].name, "inner.module.weight");
  const auto scope = outer->inner->no_sync();
  EXPECT_EQ(failure_of(guards), "DDP: the step is in no_sync() and was not");
}

/// The wrapper knows nothing of the optimizer, nor does the module, but the step does what its options say.
TEST(GuardsOfOptimizersInBackward, SeeOptionsThatChange) {
  Ddp ddp(torch::nn::Linear(4, 4), {.process_group = fake_group()});
  const auto net = ddp.module();
  const auto change_of = [&](torch::optim::Optimizer& optimizer, double rate, double momentum) {
    const OptimizerInBackward in_backward(optimizer);
    const auto of_wrapper = guards_of({ddp});
    const auto of_module = guards_of({net});
    EXPECT_EQ(failure_of(of_wrapper), nothing);
    auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
    options.lr(rate).momentum(momentum);
    EXPECT_EQ(failure_of(of_wrapper), failure_of(of_module));
    return failure_of(of_wrapper);
  };
  torch::optim::SGD libtorchs(ddp.parameters(), 0.5);
  EXPECT_EQ(change_of(libtorchs, 0.25, 0),
            "an optimizer in backward: lr was 0.5 and is 0.25 (cohort::optim takes it at each replay)");
  EXPECT_EQ(change_of(libtorchs, 0.25, 0.5), "an optimizer in backward: momentum was 0 and is 0.5");
  optim::SGD ours(ddp.parameters(), 0.5);
  EXPECT_EQ(change_of(ours, 0.25, 0), nothing);
}

TEST(DdpGuardsOfRanks, HoldOverStepsOfAllRanks) {
  for (const int size : {1, 2, 3, 4}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      Ddp ddp(torch::nn::Linear(4, 4), {.process_group = group});
      for (int i = 0; i < 2; ++i) step(ddp);
      auto guards = guards_of({ddp});
      guards.add_group(group);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(failure_of(guards), nothing);
        step(ddp);
      }
      group->barrier();
    });
  }
}

}  // namespace
}  // namespace cohort::test
