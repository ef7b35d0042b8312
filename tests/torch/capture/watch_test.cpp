// SPDX-License-Identifier: BSD-3-Clause
//
// What of modules, optimizers and users' own objects is guarded, with the text of each guard.
#include <ATen/ATen.h>
#include <cohort/torch/capture_error.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <ostream>
#include <vector>

#include "support/expect_error.h"
#include "torch/capture/guards_support.h"

namespace cohort::test {
namespace {

using recording::Guards;
namespace to = torch::optim;

/// The references are to the dictionaries' own handles.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(4, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::nn::Linear unbiased =
      register_module("unbiased", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  at::Tensor& scale = register_parameter("scale", at::ones({4}));
  at::Tensor& offset = register_buffer("offset", at::zeros({4}));
};
TORCH_MODULE(Net);

std::vector<std::string> names_of(const Guards& guards) {
  std::vector<std::string> names;
  for (const auto& each : guards.parameters()) names.push_back(each.name);
  return names;
}

// --- modules

struct ModuleCase {
  std::string name;
  std::function<void(NetImpl&)> change;
  std::string failure;
  friend void PrintTo(const ModuleCase& it, std::ostream* out) { *out << it.name; }
};

class Modules : public testing::TestWithParam<ModuleCase> {};

TEST_P(Modules, FailWhenSomethingChanged) {
  Net net;
  const auto guards = guards_of({net});
  EXPECT_EQ(failure_of(guards), nothing);
  GetParam().change(*net);
  EXPECT_EQ(failure_of(guards), GetParam().failure);
}

INSTANTIATE_TEST_SUITE_P(
    Guards, Modules,
    testing::Values(
        ModuleCase{"Values", [](NetImpl& net) { net.scale.data().fill_(2), net.norm->running_mean.add_(1); }, nothing},
        ModuleCase{"Evaluation", [](NetImpl& net) { net.eval(); },
                   "the module was in training mode and is in evaluation mode"},
        ModuleCase{"EvaluationOfOne", [](NetImpl& net) { net.fc1->eval(); },
                   "fc1 was in training mode and is in evaluation mode"},
        ModuleCase{"OtherParameter", [](NetImpl& net) { net.scale = at::ones({4}).requires_grad_(); },
                   "scale is another parameter"},
        ModuleCase{"NewParameter", [](NetImpl& net) { net.fc1->register_parameter("extra", at::ones({1})); },
                   "fc1.extra was added"},
        ModuleCase{"OtherBuffer", [](NetImpl& net) { net.offset = at::zeros({4}); }, "offset is another buffer"},
        ModuleCase{"NewBuffer", [](NetImpl& net) { net.register_buffer("more", at::ones({1})); }, "more was added"},
        ModuleCase{"OtherSubmodule", [](NetImpl& net) { net.replace_module("fc1", torch::nn::Linear(4, 4)); },
                   "fc1 is another submodule"},
        ModuleCase{"NewSubmodule", [](NetImpl& net) { net.fc1->register_module("inner", torch::nn::Linear(4, 4)); },
                   "fc1.inner was added"},
        ModuleCase{"LostSubmodule", [](NetImpl& net) { net.unregister_module("unbiased"); },
                   "the module had 3 submodules and has 2"},
        ModuleCase{"OtherMemory",
                   [](NetImpl& net) {
                     net.fc1->weight.set_data(at::ones({4, 4}));
                   },
                   "fc1.weight has other memory than before (set_data, or a move to another device and back)"},
        ModuleCase{"OtherBufferMemory", [](NetImpl& net) { net.norm->running_mean.set_data(at::ones({4})); },
                   "norm.running_mean has other memory than before (set_data, or a move to another device and back)"},
        ModuleCase{"BufferSizes", [](NetImpl& net) { net.offset.resize_({2}); }, "offset: sizes were [4] and are [2]"},
        ModuleCase{"Dtype", [](NetImpl& net) { net.fc1->to(at::kDouble); },
                   "fc1.weight: dtype was Float and is Double"},
        ModuleCase{"RequiresGrad", [](NetImpl& net) { net.fc1->bias.requires_grad_(false); },
                   "fc1.bias: requires_grad was true and is false"},
        ModuleCase{"Strides", [](NetImpl& net) { net.fc1->weight.set_data(net.fc1->weight.detach().t()); },
                   "fc1.weight: strides were [4, 1] and are [1, 4]"},
        ModuleCase{"NewGradient",
                   [](NetImpl& net) {
                     net.fc1->weight.mutable_grad() = at::ones({4, 4});
                   },
                   "gradient of fc1.weight was undefined and is defined"}),
    [](const auto& it) { return it.param.name; });

TEST(ModuleGuards, CompareGradients) {
  Net net;
  for (const auto& each : net->parameters()) each.mutable_grad() = at::ones_like(each);
  const auto guards = guards_of({net});
  EXPECT_EQ(failure_of(guards), nothing);
  net->fc1->weight.mutable_grad() = at::zeros({4, 4});
  EXPECT_EQ(failure_of(guards), nothing) << "values and memory are the step's own business";
  net->fc1->weight.mutable_grad() = at::zeros({4, 4}).t();
  EXPECT_EQ(failure_of(guards), "gradient of fc1.weight: strides were [4, 1] and are [1, 4]");
  net->fc1->weight.mutable_grad() = at::zeros({4, 4}).to_sparse();
  EXPECT_EQ(failure_of(guards), "gradient of fc1.weight was dense and is sparse");
  net->fc1->weight.mutable_grad().reset();
  EXPECT_EQ(failure_of(guards), "gradient of fc1.weight was defined and is not");
}

TEST(ModuleGuards, NameEachParameterOnce) {
  Net net;
  net->register_parameter("tied", net->fc1->weight);
  EXPECT_THAT(names_of(guards_of({net})),
              testing::ElementsAre("scale", "tied", "fc1.bias", "norm.weight", "norm.bias", "unbiased.weight"));
}

TEST(ModuleGuards, TakeModulesInEveryForm) {
  Net net;
  const std::shared_ptr<NetImpl> pointer = net.ptr();
  const std::shared_ptr<torch::nn::Module> base = pointer;
  torch::nn::Sequential layers(torch::nn::Linear(4, 4));
  to::SGD optimizer(net->parameters(), 0.1);
  const auto guards = guards_of({net, pointer, base, *net, &*net, &net, layers, optimizer, &optimizer});
  EXPECT_EQ(guards.parameters().size(), net->parameters().size() + 2) << "each once";
  EXPECT_EQ(failure_of(guards), nothing);
  layers->eval();
  EXPECT_THAT(failure_of(guards), testing::HasSubstr("evaluation"));
  EXPECT_ERROR(ValueError, Watched(std::shared_ptr<NetImpl>()), "null pointer");
  EXPECT_ERROR(ValueError, Watched(static_cast<const NetImpl*>(nullptr)), "null pointer");
}

TEST(ModuleGuards, SeeThePartsOfDistributedParameters) {
  const auto mesh = DeviceMesh::from_group(fake_group(), "cpu");
  Net net;
  net->scale = DTensor::from_local(at::ones({4}), mesh, {Shard(0)}).detach().requires_grad_();
  const auto guards = guards_of({net});
  EXPECT_EQ(failure_of(guards), nothing);
  net->scale.mutable_grad() = DTensor::from_local(at::ones({4}), mesh, {Shard(0)});
  EXPECT_EQ(failure_of(guards), "gradient of scale was undefined and is defined");
  const auto with_gradient = guards_of({net});
  net->scale.mutable_grad() = DTensor::from_local(at::ones({8}), mesh, {Replicate()});
  EXPECT_EQ(failure_of(with_gradient), "gradient of scale: placements were [S(0)] and are [R]");
  net->scale.mutable_grad().reset();
  net->scale.set_data(DTensor::from_local(at::ones({4}), mesh, {Shard(0)}));
  EXPECT_EQ(failure_of(guards), "scale has other memory than before (set_data, or a move to another device and back)");
}

TEST(ModuleGuards, KeepModulesAlive) {
  auto net = std::make_shared<NetImpl>();
  const std::weak_ptr<NetImpl> weak = net;
  const WatchList watch{net};
  net.reset();
  EXPECT_FALSE(weak.expired());
  EXPECT_EQ(failure_of(guards_of(watch)), nothing);
}

// --- optimizers

struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<to::Optimizer>(const std::vector<at::Tensor>&)> make;
  std::function<void(to::Optimizer&)> change;
  std::string failure;
  friend void PrintTo(const OptimizerCase& it, std::ostream* out) { *out << it.name; }
};

template <class Optimizer, class Options>
auto maker(Options options) {
  return [options](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<to::Optimizer> {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

template <class Options>
Options& options_of(to::Optimizer& optimizer, std::size_t group = 0) {
  return static_cast<Options&>(optimizer.param_groups().at(group).options());
}

class Optimizers : public testing::TestWithParam<OptimizerCase> {};

TEST_P(Optimizers, FailWhenSomethingChanged) {
  Net net;
  const auto optimizer = GetParam().make(net->parameters());
  const auto step = [&] {
    for (const auto& each : net->parameters()) each.mutable_grad() = at::ones_like(each);
    optimizer->step();
  };
  step();  // makes the state
  const auto guards = guards_of({net, *optimizer});
  EXPECT_EQ(failure_of(guards), nothing);
  step();
  EXPECT_EQ(failure_of(guards), nothing) << "a step alone changes nothing that is guarded";
  GetParam().change(*optimizer);
  EXPECT_EQ(failure_of(guards), GetParam().failure);
}

void add_group(to::Optimizer& optimizer) {
  optimizer.add_param_group(to::OptimizerParamGroup({at::ones({1}).requires_grad_()}));
}
void set_rate(to::Optimizer& optimizer) {
  optimizer.param_groups()[0].options().set_lr(0.05);
}
void copy_state(to::Optimizer& optimizer) {
  for (auto& [key, state] : optimizer.state()) state = state->clone();
}

INSTANTIATE_TEST_SUITE_P(
    Guards, Optimizers,
    testing::Values(OptimizerCase{"Rate", maker<to::SGD>(to::SGDOptions(0.1)), set_rate,
                                  "lr was 0.1 and is 0.05 (cohort::optim takes it at each replay)"},
                    OptimizerCase{"OwnRate", maker<optim::SGD>(to::SGDOptions(0.1)), set_rate, nothing},
                    OptimizerCase{"OwnAdamWRate", maker<optim::AdamW>(to::AdamWOptions(0.1)), set_rate, nothing},
                    OptimizerCase{"OwnDecay", maker<optim::AdamW>(to::AdamWOptions(0.1).weight_decay(0.25)),
                                  [](to::Optimizer& o) { options_of<to::AdamWOptions>(o).weight_decay(0.5); },
                                  "weight_decay was 0.25 and is 0.5"},
                    OptimizerCase{"Momentum", maker<to::SGD>(to::SGDOptions(0.1).momentum(0.9)),
                                  [](to::Optimizer& o) { options_of<to::SGDOptions>(o).momentum(0.8); },
                                  "momentum was 0.9 and is 0.8"},
                    OptimizerCase{"Nesterov", maker<to::SGD>(to::SGDOptions(0.1).momentum(0.9)),
                                  [](to::Optimizer& o) { options_of<to::SGDOptions>(o).nesterov(true); },
                                  "nesterov was false and is true"},
                    OptimizerCase{"Betas", maker<to::Adam>(to::AdamOptions(0.1)),
                                  [](to::Optimizer& o) {
                                    options_of<to::AdamOptions>(o).betas({0.9, 0.99});
                                  },
                                  "beta2 was 0.999 and is 0.99"},
                    OptimizerCase{"RateDecay", maker<to::Adagrad>(to::AdagradOptions(0.1)),
                                  [](to::Optimizer& o) { options_of<to::AdagradOptions>(o).lr_decay(0.5); },
                                  "lr_decay was 0 and is 0.5"},
                    OptimizerCase{"Centered", maker<to::RMSprop>(to::RMSpropOptions(0.1)),
                                  [](to::Optimizer& o) { options_of<to::RMSpropOptions>(o).centered(true); },
                                  "centered was false and is true"},
                    OptimizerCase{"NewGroup", maker<to::SGD>(to::SGDOptions(0.1)), add_group,
                                  "the optimizer had 1 parameter groups and has 2"},
                    OptimizerCase{"NewParameter", maker<to::SGD>(to::SGDOptions(0.1)),
                                  [](to::Optimizer& o) { o.param_groups()[0].params().push_back(at::ones({1})); },
                                  "the optimizer had 6 parameters and has 7"},
                    OptimizerCase{"OtherParameter", maker<to::SGD>(to::SGDOptions(0.1)),
                                  [](to::Optimizer& o) { o.param_groups()[0].params()[2] = at::ones({1}); },
                                  "parameter 2 of the optimizer is another tensor"},
                    OptimizerCase{"SameOptionsAgain", maker<to::SGD>(to::SGDOptions(0.1)),
                                  [](to::Optimizer& o) {
                                    o.param_groups()[0].set_options(std::make_unique<to::SGDOptions>(0.1));
                                  },
                                  nothing},
                    OptimizerCase{"CopiedState", maker<to::SGD>(to::SGDOptions(0.1).momentum(0.9)), copy_state,
                                  nothing},
                    OptimizerCase{"OtherState", maker<to::SGD>(to::SGDOptions(0.1).momentum(0.9)),
                                  [](to::Optimizer& o) {
                                    auto& state = static_cast<to::SGDParamState&>(*o.state().begin()->second);
                                    state.momentum_buffer(state.momentum_buffer().clone());
                                  },
                                  "the optimizer's state was loaded, or replaced in another way"},
                    OptimizerCase{"NoState", maker<optim::Adam>(to::AdamOptions(0.1)),
                                  [](to::Optimizer& o) { o.state().clear(); },
                                  "the optimizer's state was loaded, or replaced in another way"}),
    [](const auto& it) { return it.param.name; });

TEST(OptimizerGuards, NameGroups) {
  Net net;
  std::vector<to::OptimizerParamGroup> groups;
  groups.emplace_back(net->fc1->parameters());
  groups.emplace_back(net->norm->parameters(), std::make_unique<to::SGDOptions>(0.5));
  to::SGD optimizer(groups, 0.1);
  const auto guards = guards_of({optimizer});
  EXPECT_THAT(names_of(guards),
              testing::ElementsAre("parameter 0 of parameter group 0", "parameter 1 of parameter group 0",
                                   "parameter 0 of parameter group 1", "parameter 1 of parameter group 1"));
  options_of<to::SGDOptions>(optimizer, 1).momentum(0.9);
  EXPECT_EQ(failure_of(guards), "momentum of parameter group 1 was 0 and is 0.9");
  options_of<to::SGDOptions>(optimizer, 1).momentum(0);
  net->fc1->weight.mutable_grad() = at::ones({4, 4});
  EXPECT_EQ(failure_of(guards), "gradient of parameter 0 of parameter group 0 was undefined and is defined");
}

TEST(OptimizerGuards, SeeTheStateOfShardedOptimizers) {
  Net net;
  ZeroOptimizer<optim::AdamW> optimizer(net->parameters(), {0.1}, {.process_group = fake_group(0, 1)});
  for (const auto& each : net->parameters()) each.mutable_grad() = at::ones_like(each);
  optimizer.step();
  const auto guards = guards_of({optimizer});
  set_rate(optimizer);
  EXPECT_EQ(failure_of(guards), nothing) << "its inner optimizer takes the rate at each replay";
  optimizer.local_optimizer().state().clear();
  EXPECT_EQ(failure_of(guards), "the optimizer's state was loaded, or replaced in another way");
}

TEST(OptimizerGuards, RefuseWhatTheyCannotSee) {
  Net net;
  to::LBFGS lbfgs(net->parameters());
  EXPECT_ERROR(CaptureError, guards_of({lbfgs}), "torch::optim::LBFGS");

  struct Options : to::OptimizerCloneableOptions<Options> {};
  struct Own : to::Optimizer {
    explicit Own(const std::vector<at::Tensor>& parameters)
        : Optimizer({to::OptimizerParamGroup(parameters)}, std::make_unique<Options>()) {}
    at::Tensor step(LossClosure /*closure*/) override { return {}; }
  };
  Own own(net->parameters());
  EXPECT_ERROR(CaptureError, guards_of({own}), "cohort::Watchable");
}

// --- users' own

struct Freezing : Watchable {
  bool is_frozen = false;
  std::vector<WatchedTensor> tensors{{.name = "gate", .tensor = at::ones({2})}};

  struct Snapshot : WatchSnapshot {
    explicit Snapshot(const Freezing& its) : freezing(its), was_frozen(its.is_frozen) {}
    std::optional<std::string> change() const override {
      if (freezing.is_frozen == was_frozen) return std::nullopt;
      return "the backbone was thawed or frozen";
    }
    const std::vector<WatchedTensor>& parameters() const override { return freezing.tensors; }
    const Freezing& freezing;
    bool was_frozen;
  };
  std::unique_ptr<WatchSnapshot> watch_snapshot() const override { return std::make_unique<Snapshot>(*this); }
};

TEST(OwnGuards, AreAskedAndTheirParametersGuarded) {
  Freezing freezing;
  const auto guards = guards_of({freezing});
  EXPECT_EQ(failure_of(guards), nothing);
  freezing.is_frozen = true;
  EXPECT_EQ(failure_of(guards), "the backbone was thawed or frozen");
  freezing.is_frozen = false;
  freezing.tensors[0].tensor.mutable_grad() = at::ones({2});
  EXPECT_EQ(failure_of(guards), "gradient of gate was undefined and is defined");
}

TEST(OwnGuards, ComeBeforeThoseOfOptimizersAndModules) {
  struct OwnOptimizer : to::SGD, Freezing {
    using to::SGD::SGD;
  };
  struct OwnModule : torch::nn::Module, Freezing {};
  Net net;
  OwnOptimizer optimizer(net->parameters(), to::SGDOptions(0.1));
  const to::Optimizer& as_optimizer = optimizer;
  const auto module = std::make_shared<OwnModule>();
  const auto guards = guards_of({optimizer, as_optimizer, module, *module});
  set_rate(optimizer);
  module->eval();
  EXPECT_EQ(failure_of(guards), nothing);
  optimizer.is_frozen = true;
  EXPECT_EQ(failure_of(guards), "the backbone was thawed or frozen");
  optimizer.is_frozen = false;
  module->is_frozen = true;
  EXPECT_EQ(failure_of(guards), "the backbone was thawed or frozen");
}

}  // namespace
}  // namespace cohort::test
