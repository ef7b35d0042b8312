// SPDX-License-Identifier: BSD-3-Clause
//
// cohort::optim in eager mode: the bits of libtorch's optimizers, in parameters and state, whatever the options, and
// wherever else an optimizer goes.
#include <ATen/ATen.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/lr_schedule.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/serialize.h>

#include <cmath>
#include <numbers>
#include <sstream>

#include "support/temporary.h"
#include "torch/capture/optimizer_rules.h"
#include "torch/optim/replayed_rates.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

class Optimizers : public testing::TestWithParam<Rule> {};

INSTANTIATE_TEST_SUITE_P(All, Optimizers, testing::ValuesIn(all_rules()),
                         [](const auto& each) { return each.param.name; });

TEST_P(Optimizers, HaveTheBitsOfLibtorchs) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const bool set_to_none : {true, false}) {
      auto mine = GetParam().make(true, dtype);
      auto theirs = GetParam().make(false, dtype);
      optim::StepLR schedule(*mine.optimizer, 7, 0.9);
      torch::optim::StepLR their_schedule(*theirs.optimizer, 7, 0.9);
      for (int step = 0; step < 50; ++step) {
        mine.train(step, step + 1, set_to_none, schedule);
        theirs.train(step, step + 1, set_to_none, their_schedule);
        ASSERT_TRUE(same_bits(mine.parameters, theirs.parameters)) << "step " << step;
      }
      expect_same_state(*mine.optimizer, *theirs.optimizer);
    }
  }
}

/// Checkpoints of one continue in the other.
TEST_P(Optimizers, GoOnFromACheckpointOfEither) {
  const TemporaryFolder folder;
  auto whole = GetParam().make(false, at::kFloat);
  torch::optim::StepLR whole_schedule(*whole.optimizer, 7, 0.9);
  whole.train(0, 50, true, whole_schedule);

  const auto add = [](Checkpoint& checkpoint, Trainee& trainee, auto& schedule) {
    for (std::size_t i = 0; i < trainee.parameters.size(); ++i) {
      checkpoint.add("parameter " + std::to_string(i), trainee.parameters[i]);
    }
    checkpoint.add("optimizer", *trainee.optimizer);
    checkpoint.add("schedule", schedule);
  };
  for (const bool saves : {true, false}) {
    const auto path = folder / (saves ? "mine" : "theirs");
    auto first = GetParam().make(saves, at::kFloat);
    optim::StepLR first_schedule(*first.optimizer, 7, 0.9);
    first.train(0, 25, true, first_schedule);
    Checkpoint saving({.random_state = false});
    add(saving, first, first_schedule);
    saving.save(path);
    for (const bool loads : {true, false}) {
      if (!saves && !loads) continue;
      auto second = GetParam().make(loads, at::kFloat);
      torch::optim::StepLR second_schedule(*second.optimizer, 7, 0.9);
      second.train(0, 2, true, second_schedule);  // what it has is replaced
      Checkpoint loading({.random_state = false});
      add(loading, second, second_schedule);
      loading.load(path);
      second.train(25, 50, true, second_schedule);
      EXPECT_TRUE(same_bits(second.parameters, whole.parameters)) << saves << loads;
      expect_same_state(*second.optimizer, *whole.optimizer);
    }
  }
}

struct NoSchedule {
  void step() const {}
};

TEST_P(Optimizers, ReadAndWriteLibtorchsArchives) {
  const NoSchedule fixed;
  auto first = GetParam().make(true, at::kFloat);
  first.train(0, 6, true, fixed);
  std::stringstream bytes;
  torch::serialize::OutputArchive archive;
  first.optimizer->save(archive);
  archive.save_to(bytes);
  Trainee second = GetParam().make(false, at::kFloat);
  Trainee third = GetParam().make(true, at::kFloat);
  for (auto* const each : {&second, &third}) {
    for (std::size_t i = 0; i < each->parameters.size(); ++i) {
      each->parameters[i].detach().copy_(first.parameters[i].detach());
    }
    std::stringstream copy(bytes.str());
    torch::serialize::InputArchive loading;
    loading.load_from(copy);
    each->optimizer->load(loading);
    each->train(6, 12, true, fixed);
  }
  first.train(6, 12, true, fixed);
  EXPECT_TRUE(same_bits(second.parameters, first.parameters));
  EXPECT_TRUE(same_bits(third.parameters, first.parameters));
}

TEST_P(Optimizers, StepsAWeightThatIsListedTwiceTwice) {
  const auto run = [](bool is_mine, const Rule& of) {
    auto trainee = of.make(is_mine, at::kFloat);
    auto& list = trainee.optimizer->param_groups()[0].params();
    list.push_back(list[0]);
    trainee.train(0, 10, true, NoSchedule());
    return trainee.parameters;
  };
  EXPECT_TRUE(same_bits(run(true, GetParam()), run(false, GetParam())));
}

/// Element by element, so that the parts of a distributed tensor have the bits of the whole.
TEST_P(Optimizers, StepDistributedTensors) {
  auto theirs = GetParam().make(false, at::kDouble);
  theirs.train(0, 10, true, NoSchedule());
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = DeviceMesh::from_group(group, "cpu");
    auto mine = GetParam().make(true, at::kDouble);
    Tensors parts;
    std::unordered_map<c10::TensorImpl*, at::Tensor> part_of;
    for (const auto& each : mine.parameters) {
      const Placements placements{each.dim() > 0 && each.size(0) > 1 ? Placement(Shard(0)) : Placement(Replicate())};
      const at::Tensor part = distribute_tensor(each.detach(), mesh, placements);
      parts.push_back(part.detach().set_requires_grad(true));
      part_of[each.unsafeGetTensorImpl()] = parts.back();
    }
    for (auto& each : mine.optimizer->param_groups()) {
      for (auto& parameter : each.params()) parameter = part_of.at(parameter.unsafeGetTensorImpl());
    }
    mine.parameters = parts;
    mine.train(0, 10, true, NoSchedule());
    Tensors whole;
    for (const auto& each : parts) whole.push_back(DTensor(each.detach()).full_tensor());
    EXPECT_TRUE(same_bits(whole, theirs.parameters));
  });
}

TEST(Optimizer, TakesSparseGradientsAsLibtorchDoes) {
  for (const auto& options :
       {SGDOptions(0.1), SGDOptions(0.1).momentum(0.9), SGDOptions(0.1).momentum(0.9).nesterov(true),
        SGDOptions(0.1).momentum(0.5).dampening(0.1)}) {
    auto table = at::ones({5, 2}).set_requires_grad(true);
    auto expected = at::ones({5, 2}).set_requires_grad(true);
    optim::SGD mine({table}, options);
    torch::optim::SGD theirs({expected}, options);
    for (int step = 0; step < 10; ++step) {
      const auto rows = at::tensor({step % 5, (2 * step + 1) % 5}, at::kLong).unsqueeze(0);
      for (auto* const each : {&table, &expected}) {
        each->mutable_grad() = at::sparse_coo_tensor(rows, at::full({2, 2}, 0.1 * (step + 1)), {5, 2});
      }
      mine.step();
      theirs.step();
      ASSERT_TRUE(same_bits({table}, {expected})) << step;
    }
  }
  const auto refused = [](auto optimizer, Tensors& all, const char* why) {
    EXPECT_ERROR(ValueError, optimizer.step(), why);
    EXPECT_TRUE(all[0].equal(at::ones({2, 2}))) << "nothing has changed";
    EXPECT_TRUE(optimizer.state().empty());
  };
  Tensors all{at::ones({2, 2}).set_requires_grad(true), at::ones({2, 2}).set_requires_grad(true)};
  all[0].mutable_grad() = at::ones({2, 2});
  all[1].mutable_grad() = at::ones({2, 2}).to_sparse();
  refused(optim::Adam(all, 0.1), all, "Adam: a sparse gradient; SGD takes them");
  refused(optim::AdamW(all, 0.1), all, "AdamW: a sparse gradient");
  refused(optim::SGD(all, SGDOptions(0.1).momentum(0.9).weight_decay(0.1)), all, "weight decay");
}

TEST(Optimizer, ZeroesOrRemovesGradients) {
  Tensors all{at::ones({2}).set_requires_grad(true), at::ones({2}).set_requires_grad(true)};
  optim::SGD optimizer(all, 0.1);
  auto memory = at::ones({2});
  all[0].mutable_grad() = memory;
  optimizer.zero_grad(false);
  EXPECT_TRUE(all[0].grad().is_same(memory)) << "the gradient's memory stays";
  EXPECT_TRUE(memory.equal(at::zeros({2})));
  EXPECT_FALSE(all[1].grad().defined());
  (all[0] * all[0] * all[1]).sum().backward({}, {}, true);
  ASSERT_TRUE(all[0].grad().requires_grad()) << "with create_graph";
  optimizer.zero_grad(false);
  EXPECT_FALSE(all[0].grad().requires_grad());
  optimizer.zero_grad();
  EXPECT_FALSE(all[0].grad().defined());
}

TEST(Optimizer, EvaluatesAClosure) {
  auto weight = at::full({1}, 3.0).set_requires_grad(true);
  optim::SGD optimizer({weight}, 0.5);
  const at::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto square = (weight * weight).sum();
    square.backward();
    return square;
  });
  EXPECT_EQ(loss.item<double>(), 9);
  EXPECT_EQ(weight.item<double>(), 0);
}

TEST(Optimizer, IsShardedAndScaledAsLibtorchs) {
  auto expected = some_parameters(at::kDouble);
  torch::optim::AdamW plain(expected, 0.01);
  const auto train = [](Optimizer& optimizer, Tensors& all) {
    GradScaler scaler({.init_scale = 8});
    for (int step = 0; step < 12; ++step) {
      optimizer.param_groups()[0].options().set_lr(0.01 / (step + 1));
      optim::zero_grad(optimizer);
      add_gradients(all, step);
      for (auto& each : all) {
        if (each.grad().defined()) each.mutable_grad().mul_(8);
      }
      scaler.step(optimizer);
      scaler.update(8);
    }
  };
  train(plain, expected);
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    auto mine = some_parameters(at::kDouble);
    ZeroOptimizer<optim::AdamW> zero(mine, 0.01, {.process_group = group});
    train(zero, mine);
    EXPECT_TRUE(same_bits(mine, expected));
    EXPECT_TRUE(reads_rates_in_replays(zero));
    EXPECT_FALSE(reads_rates_in_replays(ZeroOptimizer<torch::optim::AdamW>(mine, 0.01, {.process_group = group})));
  });
  EXPECT_TRUE(reads_rates_in_replays(optim::SGD({at::ones({1})}, 0.1)));
  EXPECT_FALSE(reads_rates_in_replays(plain));
}

// --- schedules ------------------------------------------------------------------------------------------------------

TEST(Schedule, FactorsAreWhatTheyAreCalled) {
  const auto wave = optim::cosine(4, 0.2);
  const double half = std::numbers::sqrt2 / 2;
  const std::vector<double> expected{1, 0.6 + 0.4 * half, 0.6, 0.6 - 0.4 * half, 0.2, 0.2};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(wave(static_cast<std::int64_t>(i)), expected[i], 1e-15) << i;
  }
  const auto both = optim::warm_up(5, wave);
  for (int step = 0; step < 5; ++step) EXPECT_DOUBLE_EQ(both(step), (step + 1) / 5.0);
  for (int step = 5; step < 12; ++step) EXPECT_EQ(both(step), wave(step - 5));
  EXPECT_ERROR(ValueError, optim::cosine(0), "cosine: 0 steps");
  EXPECT_ERROR(ValueError, optim::warm_up(-1, wave), "warm_up: -1 steps");
  EXPECT_ERROR(ValueError, optim::warm_up(1, {}), "no schedule to follow");
}

TEST(Schedule, SetsTheRatesOfAllGroupsAndIsSaved) {
  const TemporaryFolder folder;
  const auto group = [](double lr) {
    return OptimizerParamGroup({at::ones({1}).set_requires_grad(true)}, std::make_unique<SGDOptions>(lr));
  };
  const auto rates = [](Optimizer& optimizer) {
    std::vector<double> all;
    for (const auto& each : optimizer.param_groups()) all.push_back(each.options().get_lr());
    return all;
  };
  const optim::LrFactor factor = [](std::int64_t step) { return std::ldexp(1, -static_cast<int>(step)); };
  const auto two_groups = [&] { return std::vector<OptimizerParamGroup>{group(0.4), group(0.1)}; };
  optim::SGD optimizer(two_groups(), 1.0);
  optim::LambdaLR schedule(optimizer, factor);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.4, 0.1}));
  schedule.step();
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.2, 0.05}));
  Checkpoint saving;
  saving.add("schedule", schedule);
  saving.save(folder / "schedule");
  schedule.step();
  schedule.step();
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.05, 0.0125}));
  optimizer.add_param_group(group(8));
  schedule.step();
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.025, 0.00625, 0.5}));

  optim::SGD resumed(two_groups(), 1.0);
  resumed.param_groups()[0].options().set_lr(7);  // made from other rates, which are replaced
  optim::LambdaLR going_on(resumed, factor);
  Checkpoint loading;
  loading.add("schedule", going_on);
  loading.load(folder / "schedule");
  going_on.step();
  going_on.step();
  EXPECT_EQ(rates(resumed), (std::vector<double>{0.05, 0.0125}));
  optim::SGD smaller({at::ones({1})}, 1.0);
  optim::LambdaLR other(smaller, factor);
  EXPECT_ERROR(ValueError, other.load_state_dict(schedule.state_dict()), "3 groups, and there are 1");
  EXPECT_ERROR(ValueError, optim::LambdaLR(smaller, {}), "no factor");
}

}  // namespace
}  // namespace cohort::test
