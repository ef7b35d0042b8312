// SPDX-License-Identifier: BSD-3-Clause
//
// Runs whose parameters are distributed, saved and resumed on other meshes: modules, optimizers and random numbers.
#include <ATen/ATen.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/parallelize.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "support/temporary.h"
#include "torch/checkpoint/state_bytes.h"
#include "torch/compat/state_key.h"
#include "torch/dtensor/saved_tensors.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

struct Mlp : torch::nn::Module {
  torch::nn::Linear widen{nullptr}, narrow{nullptr};
  Mlp() {
    widen = register_module("widen", torch::nn::Linear(6, 10));
    narrow = register_module("narrow", torch::nn::Linear(10, 3));
    register_buffer("count", at::zeros({2}));
    const at::NoGradGuard no_grad;
    for (auto& each : parameters()) each.copy_(at::arange(each.numel(), at::kFloat).view_as(each).sin().div(3));
  }
  at::Tensor forward(const at::Tensor& x) { return narrow->forward(at::relu(widen->forward(x))); }
};

/// What a run consists of. The mesh is that of distributed parameters; without one they are plain.
template <class Optimizer, class Options>
struct TrainingRun {
  std::shared_ptr<Mlp> net = std::make_shared<Mlp>();
  std::optional<DeviceMesh> mesh{};
  std::unique_ptr<Optimizer> optimizer{};
  std::int64_t step = 0;

  TrainingRun(const ProcessGroupPtr& group, const Sizes& shape, bool replicated, const Options& options) {
    if (group != nullptr) {
      mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
      distribute_module(*net, *mesh, [&](const std::string& name, const at::Tensor&) -> Placements {
        Placements all(shape.size(), Replicate());
        if (replicated || name == "narrow.bias") return all;
        all.back() = Shard(name == "narrow.weight" ? 1 : 0);
        return all;
      });
    }
    optimizer = std::make_unique<Optimizer>(net->parameters(), options);
  }

  double train() {
    auto x = at::arange(24, at::kFloat).add(step).view({4, 6}).cos();
    auto y = at::ones({4, 3});
    if (mesh) {
      x = distribute_tensor(x, *mesh);
      y = distribute_tensor(y, *mesh);
    }
    optimizer->zero_grad();
    const auto loss = at::mse_loss(net->forward(x), y);
    loss.backward();
    optimizer->step();
    ++step;
    return loss.template item<double>();
  }

  Checkpoint checkpoint() {
    Checkpoint all({.random_state = false});
    all.add("model", net);
    all.add("optimizer", *optimizer);
    all.add("step", step);
    return all;
  }

  /// The bits of all parameters and of the optimizer's state, as one process would have them.
  std::map<std::string, std::string> bits() {
    std::map<std::string, std::string> all;
    const auto whole = [](const at::Tensor& tensor) {
      return bits_of(is_dtensor(tensor) ? DTensor(tensor).full_tensor() : tensor);
    };
    for (const auto& item : net->named_parameters()) all[item.key()] = whole(item.value());
    for (const auto& item : net->named_buffers()) all[item.key()] = whole(item.value());
    int number = 0;
    for (const auto& parameter : optimizer->param_groups()[0].params()) {
      const auto found = optimizer->state().find(state_key(parameter));
      const auto name = std::to_string(number++);
      if (found == optimizer->state().end()) continue;
      if constexpr (std::is_same_v<Optimizer, torch::optim::Adam>) {
        const auto& state = static_cast<const torch::optim::AdamParamState&>(*found->second);
        all[name + ".exp_avg"] = whole(state.exp_avg());
        all[name + ".exp_avg_sq"] = whole(state.exp_avg_sq());
        all[name + ".max_exp_avg_sq"] = whole(state.max_exp_avg_sq());
        all[name + ".step"] = std::to_string(state.step());
      } else {
        const auto& state = static_cast<const torch::optim::SGDParamState&>(*found->second);
        all[name + ".momentum_buffer"] = whole(state.momentum_buffer());
      }
    }
    return all;
  }
};

template <class Optimizer, class Options>
void expect_run_to_move(const Options& options) {
  using OneRun = TrainingRun<Optimizer, Options>;
  const TemporaryFolder folder;
  std::map<std::string, std::string> saved;
  std::vector<double> losses;
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    OneRun run(group, {2, 2}, false, options);
    for (int i = 0; i < 3; ++i) run.train();
    run.net->named_buffers()["count"].fill_(7);
    run.checkpoint().save(folder / "2x2", group, sharded);
    const auto bits = run.bits();
    if (group->rank() == 0) saved = bits;
  });
  ASSERT_EQ(saved.size(), (std::is_same_v<Optimizer, torch::optim::Adam> ? 4 + 1 + 4 * 4 : 4 + 1 + 4));

  const auto load = [&](const ProcessGroupPtr& group, const Sizes& shape, bool replicated, const std::string& from,
                        const std::string& to) {
    OneRun run(group, shape, replicated, options);
    if (replicated) run.train();  // its state is replaced; without, it has none yet
    auto checkpoint = run.checkpoint();
    checkpoint.load(folder / from, group);
    EXPECT_EQ(run.step, 3);
    EXPECT_EQ(run.bits(), saved) << from << " to " << to;
    if (!to.empty()) checkpoint.save(folder / to, group, sharded);
    std::vector<double> next;
    for (int i = 0; i < 3; ++i) next.push_back(run.train());
    return std::pair(next, run.bits());
  };
  with_torch_threads(4, [&](const ProcessGroupPtr& group) { load(group, {4, 1}, false, "2x2", "4x1"); });
  const auto alone = load(nullptr, {}, false, "4x1", "alone");
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    load(group, {2, 2}, false, "alone", "");
    EXPECT_EQ(load(group, {2, 2}, true, "alone", ""), alone)
        << "replicated, the run goes on with the bits of one process";
  });
  with_torch_threads(3, [&](const ProcessGroupPtr& group) { load(group, {3}, false, "2x2", ""); });
}

TEST(DistributedCheckpoints, AdamGoesOnOnAnotherMesh) {
  expect_run_to_move<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
}

TEST(DistributedCheckpoints, SgdGoesOnOnAnotherMesh) {
  expect_run_to_move<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// A module of which "tp" has the parts and "dp" the replicas, wrapped by DistributedDataParallel: its parameters are
/// this rank's parts then. `make(parameters, group of dp)` returns the optimizer.
template <class Make>
void expect_wrapped_run_to_move(Make&& make) {
  using Alone = TrainingRun<torch::optim::Adam, torch::optim::AdamOptions>;
  const TemporaryFolder folder;
  const auto run = [&](const Sizes& shape, const std::function<void(Checkpoint&, const ProcessGroupPtr&)>& before,
                       int steps, const std::string& to) {
    with_torch_threads(4, [&](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", shape, {"dp", "tp"}, {.process_group = group});
      const auto net = std::make_shared<Mlp>();
      parallelize_module(*net, mesh["tp"], {{"widen", ColwiseParallel()}, {"narrow", RowwiseParallel()}});
      DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"]});
      auto optimizer = make(ddp.parameters(), mesh.group("dp"));
      std::int64_t step = 3;
      Checkpoint checkpoint({.random_state = false});
      checkpoint.add("model", net);
      checkpoint.add("optimizer", *optimizer);
      checkpoint.add("step", step);
      before(checkpoint, group);
      for (int i = 0; i < steps; ++i) {
        const auto x = at::arange(24, at::kFloat).add(i + 10 * mesh.local_rank("dp")).view({4, 6}).cos();
        optimizer->zero_grad();
        at::mse_loss(ddp.forward(distribute_tensor(x, mesh["tp"])), distribute_tensor(at::ones({4, 3}), mesh["tp"]))
            .backward();
        optimizer->step();
      }
      EXPECT_ERROR(CheckpointError, checkpoint.save(folder / "file", group), "save with {.sharded = true}");
      checkpoint.save(folder / to, group, sharded);
    });
  };
  const auto loaded_alone = [&](const std::string& from) {
    Alone alone(nullptr, {}, false, torch::optim::AdamOptions(1).amsgrad(true));
    alone.checkpoint().load(folder / from);
    return alone.bits();
  };
  run(
      {2, 2}, [](auto&, const auto&) {}, 3, "2x2");
  run(
      {1, 4}, [&](Checkpoint& checkpoint, const auto& group) { checkpoint.load(folder / "2x2", group); }, 0, "1x4");
  const auto bits = loaded_alone("2x2");
  EXPECT_EQ(bits.size(), 4U + 1 + 4 * 4);
  EXPECT_EQ(loaded_alone("1x4"), bits);
  // A fresh module on 1 x 4 has other values, so they were loaded; and these are what training gave.
  EXPECT_NE(Alone(nullptr, {}, false, torch::optim::AdamOptions(1)).bits().at("widen.weight"), bits.at("widen.weight"));
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    TrainingRun<torch::optim::Adam, torch::optim::AdamOptions> unwrapped(group, {2, 2}, false,
                                                                         torch::optim::AdamOptions(1).amsgrad(true));
    unwrapped.checkpoint().load(folder / "2x2", group);
    EXPECT_EQ(unwrapped.bits(), bits);
  });
}

TEST(DistributedCheckpoints, AWrappedModulesPartsAreSavedAsWhatTheyAre) {
  expect_wrapped_run_to_move([](const std::vector<at::Tensor>& parameters, const ProcessGroupPtr& /*dp*/) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01).amsgrad(true));
  });
}

TEST(DistributedCheckpoints, MomentsThatZeroSpreadsOverTheReplicasAreSavedByWhoHasThem) {
  expect_wrapped_run_to_move([](const std::vector<at::Tensor>& parameters, const ProcessGroupPtr& dp) {
    return std::make_unique<ZeroOptimizer<torch::optim::Adam>>(
        parameters, torch::optim::AdamOptions(0.01).amsgrad(true), ZeroOptions{.process_group = dp});
  });
}

TEST(DistributedCheckpoints, AFolderFromElsewhereGoesIntoADistributedModule) {
  const TemporaryFolder folder;
  const auto dense = std::make_shared<Mlp>();
  StateDict state;
  for (const auto& item : dense->named_parameters()) state.set(item.key(), item.value());
  for (const auto& item : dense->named_buffers()) state.set(item.key(), item.value());
  std::filesystem::create_directory(folder / "theirs");
  std::ofstream(folder / "theirs/model.safetensors", std::ios::binary) << state_to_bytes(state);
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    TrainingRun<torch::optim::SGD, torch::optim::SGDOptions> run(group, {2, 2}, false, torch::optim::SGDOptions(0.1));
    {
      const at::NoGradGuard no_grad;
      for (auto& each : run.net->parameters()) each.zero_();
    }
    Checkpoint checkpoint;
    checkpoint.add("model", run.net);
    checkpoint.load(folder / "theirs", group);
    for (const auto& item : run.net->named_parameters()) {
      EXPECT_TRUE(DTensor(item.value()).full_tensor().equal(dense->named_parameters()[item.key()])) << item.key();
    }
    // Two modules take the same tensors, and each its own part of them.
    TrainingRun<torch::optim::SGD, torch::optim::SGDOptions> other(nullptr, {}, false, torch::optim::SGDOptions(0.1));
    checkpoint.add("plain", other.net);
    checkpoint.load(folder / "theirs", group);
    EXPECT_TRUE(other.net->widen->weight.equal(dense->widen->weight));
  });
}

TEST(DistributedCheckpoints, RandomNumbersGoOnWhereTheyWere) {
  const TemporaryFolder folder;
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {}, {.process_group = group});
    const auto net = std::make_shared<Mlp>();
    distribute_module(*net, mesh);
    Checkpoint checkpoint;
    checkpoint.add("model", net);
    const auto draw = [](const DeviceMesh& on) {
      return bits_of(dtensor::rand({8}, on, {Shard(0), Replicate()}).to_local());
    };
    dtensor::manual_seed(5, mesh);
    draw(mesh);
    checkpoint.save(folder / "saved", group, sharded);
    const auto expected = draw(mesh);
    EXPECT_NE(draw(mesh), expected);
    checkpoint.load(folder / "saved", group);
    EXPECT_EQ(draw(mesh), expected);
    // In the next run, of which the groups are others; and on another mesh, which keeps its own.
    const auto again = init_device_mesh("cpu", {2, 2}, {}, {.process_group = group});
    const auto other = init_device_mesh("cpu", {4, 1}, {}, {.process_group = group});
    for (const auto& each : {again, other}) {
      const auto next = std::make_shared<Mlp>();
      distribute_module(*next, each);
      dtensor::manual_seed(6, each);
      Checkpoint loading;
      loading.add("model", next);
      loading.load(folder / "saved", group);
      EXPECT_EQ(draw(each) == expected, each == again);
    }
  });
}

}  // namespace
}  // namespace cohort::test
