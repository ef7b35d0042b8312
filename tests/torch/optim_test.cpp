// SPDX-License-Identifier: BSD-3-Clause
//
// What steps: the sharded optimizer, optimizers that libtorch does not have, loss scaling, clipping.
#include <cohort/current_group.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/tensor.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "support/temporary.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Tensors = std::vector<torch::Tensor>;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// The same on all ranks; one of zero elements, one whose memory is not in the order of its elements.
Tensors parameters() {
  Tensors all;
  const std::vector<std::vector<std::int64_t>> shapes{{7, 3}, {5}, {1}, {0, 4}, {11, 2}, {4, 3}, {2, 2, 2}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    std::int64_t count = 1;
    for (const auto size : shapes[i]) count *= size;
    auto values = torch::sin(torch::arange(count, torch::kDouble) + static_cast<double>(i)).reshape(shapes[i]);
    if (i == 5) values = values.t().contiguous().t();
    all.push_back(values.clone().set_requires_grad(true));
  }
  return all;
}

/// As after a backward that all ranks agree on; every third step one parameter has no gradient.
void set_gradients(Tensors& all, int step) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto number = static_cast<double>(i);
    all[i].mutable_grad() =
        step % 3 == 2 && i == 1 ? torch::Tensor() : torch::cos(all[i].detach() * (number + 1) + step) + 0.1 * number;
  }
}

bool equal(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return x.equal(y); });
}

std::vector<torch::optim::OptimizerParamGroup> two_groups(const Tensors& all, double second_rate) {
  auto options = std::make_unique<torch::optim::AdamWOptions>(second_rate);
  options->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Tensors(all.begin(), all.begin() + 4));
  groups.emplace_back(Tensors(all.begin() + 4, all.end()), std::move(options));
  return groups;
}

/// Steps `from` to `to`, with a rate that changes on the way.
void train(torch::optim::Optimizer& optimizer, Tensors& all, int from, int to) {
  for (int step = from; step < to; ++step) {
    if (step == 10) optimizer.param_groups().back().options().set_lr(0.003);
    set_gradients(all, step);
    optimizer.step();
  }
}

template <class Inner>
void expect_same_as_unsharded(typename OptimizerTypes<Inner>::Options options) {
  auto expected = parameters();
  Inner plain(expected, options);
  train(plain, expected, 0, 20);
  for (const int size : {1, 2, 3}) {
    for (const std::size_t bucket : {std::size_t{1}, std::size_t{100}, std::size_t{25} << 20}) {
      with_torch_threads(size, [&](const ProcessGroupPtr& group) {
        auto mine = parameters();
        ZeroOptimizer<Inner> zero(mine, options, {.process_group = group, .bucket_bytes = bucket});
        train(zero, mine, 0, 20);
        EXPECT_TRUE(equal(mine, expected)) << size << " ranks, buckets of " << bucket;
      });
    }
  }
}

TEST(ZeroOptimizer, HasTheBitsOfTheOptimizerItself) {
  expect_same_as_unsharded<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
  expect_same_as_unsharded<torch::optim::Adam>(0.01);
  expect_same_as_unsharded<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
  expect_same_as_unsharded<torch::optim::Adagrad>(0.01);
  expect_same_as_unsharded<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

TEST(ZeroOptimizer, GroupsHaveTheirOwnOptionsAndCanBeAdded) {
  auto expected = parameters();
  torch::optim::AdamW plain(two_groups(expected, 0.05), 0.01);
  train(plain, expected, 0, 15);
  with_torch_threads(3, [&](const ProcessGroupPtr& group) {
    const ProcessGroupGuard scope(group);
    auto mine = parameters();
    ZeroOptimizer<torch::optim::AdamW> zero(two_groups(mine, 0.05), 0.01);
    train(zero, mine, 0, 15);
    EXPECT_TRUE(equal(mine, expected));

    auto later = parameters();
    auto groups = two_groups(later, 0.05);
    ZeroOptimizer<torch::optim::AdamW> grown({groups[0]}, 0.01);
    grown.add_param_group(groups[1]);
    train(grown, later, 0, 15);
    EXPECT_TRUE(equal(later, expected));
  });
}

TEST(ZeroOptimizer, DealsOutBySizeAndKeepsOnlyItsShareOfTheState) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Tensors all;
    for (const auto count : {5, 1, 10, 6, 5}) all.push_back(torch::ones({count}).set_requires_grad(true));
    ZeroOptimizer<torch::optim::AdamW> zero(all, 0.1, {.process_group = group});
    // Largest first, to the rank with least: 10 → 0; 6 → 1; 5 → 1 (11); 5 → 0 (15); 1 → 1.
    std::vector<int> owners;
    for (const auto& each : all) owners.push_back(zero.owner_of(each));
    EXPECT_EQ(owners, (std::vector<int>{1, 1, 0, 1, 0}));
    set_gradients(all, 0);
    zero.step();
    EXPECT_EQ(zero.local_optimizer().state().size(), group->rank() == 0 ? 2U : 3U);
    EXPECT_ERROR(ValueError, zero.owner_of(torch::ones({1})), "none of its parameters");
  });
}

TEST(ZeroOptimizer, StepsPartsForHooks) {
  auto expected = parameters();
  torch::optim::AdamW plain(expected, 0.01);
  train(plain, expected, 0, 6);
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    auto mine = parameters();
    ZeroOptimizer<torch::optim::AdamW> zero(mine, 0.01, {.process_group = group});
    for (int step = 0; step < 6; ++step) {
      set_gradients(mine, step);
      for (std::size_t begin = 0; begin < mine.size(); begin += 3) {
        const auto bucket = std::span(mine).subspan(begin, std::min<std::size_t>(3, mine.size() - begin));
        zero.step_parameters(bucket);
        zero.share_parameters(bucket);
      }
    }
    EXPECT_TRUE(equal(mine, expected));
  });
}

TEST(ZeroOptimizer, CheckpointsFitAnyNumberOfRanksAndThePlainOptimizer) {
  const TemporaryFolder folder;
  const auto path = folder / "zero.ckpt";
  auto expected = parameters();
  torch::optim::AdamW plain(two_groups(expected, 0.05), 0.01);
  train(plain, expected, 0, 20);

  const auto add = [](Checkpoint& checkpoint, Tensors& all) {
    for (std::size_t i = 0; i < all.size(); ++i) checkpoint.add("parameter " + std::to_string(i), all[i]);
  };
  with_torch_threads(3, [&](const ProcessGroupPtr& group) {
    auto mine = parameters();
    ZeroOptimizer<torch::optim::AdamW> zero(two_groups(mine, 0.05), 0.01, {.process_group = group});
    train(zero, mine, 0, 12);
    torch::serialize::OutputArchive nowhere;
    EXPECT_ERROR(Error, zero.save(nowhere), "consolidate_state");
    EXPECT_ERROR(ValueError, zero.consolidate_state(3), "root 3 of 3");
    Checkpoint checkpoint({.random_state = false});
    add(checkpoint, mine);
    checkpoint.add("optimizer", zero);
    checkpoint.save(path, group);
    train(zero, mine, 12, 20);
    EXPECT_TRUE(equal(mine, expected)) << "saving changes nothing";
    EXPECT_ERROR(Error, zero.save(nowhere), "consolidate_state");  // the step made it old
  });
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    auto mine = parameters();
    ZeroOptimizer<torch::optim::AdamW> zero(two_groups(mine, 1), 0.01, {.process_group = group});
    train(zero, mine, 0, 1);  // what it has is replaced
    Checkpoint checkpoint({.random_state = false});
    add(checkpoint, mine);
    checkpoint.add("optimizer", zero);
    checkpoint.load(path, group);
    train(zero, mine, 12, 20);
    EXPECT_TRUE(equal(mine, expected)) << "on two ranks";
  });
  auto alone = parameters();
  torch::optim::AdamW unsharded(two_groups(alone, 1), 0.01);
  Checkpoint checkpoint({.random_state = false});
  add(checkpoint, alone);
  checkpoint.add("optimizer", unsharded);
  checkpoint.load(path);
  EXPECT_EQ(unsharded.param_groups()[1].options().get_lr(), 0.003) << "options come back";
  train(unsharded, alone, 12, 20);
  EXPECT_TRUE(equal(alone, expected)) << "without ZeRO";
}

TEST(ZeroOptimizer, RefusesRanksThatDifferAndTakesTiedWeightsOnce) {
  EXPECT_ERROR(Error, ZeroOptimizer<torch::optim::SGD>(parameters(), 0.1), "ZeroOptimizer");
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto weight = torch::ones({group->rank() == 1 ? 3 : 4}).set_requires_grad(true);
    EXPECT_ERROR(MismatchError, ZeroOptimizer<torch::optim::SGD>({weight}, 0.1, {.process_group = group}),
                 "rank 1 has other parameters");
    auto tied = torch::ones({2}).set_requires_grad(true);
    ZeroOptimizer<torch::optim::SGD> zero({tied, tied}, 1.0, {.process_group = group});
    tied.mutable_grad() = torch::ones({2});
    const auto loss = zero.step([] { return torch::ones({}); });
    EXPECT_EQ(loss.item<double>(), 1);
    EXPECT_TRUE(tied.equal(torch::zeros({2})));
  });
}

// --- those that libtorch does not have ------------------------------------------------------------------------------

// The numbers are PyTorch 1.13's:
//   import torch; torch.set_default_dtype(torch.float64)
//   def run(cls, **kw):
//     p = torch.tensor([1.0, -2.0, 0.5], requires_grad=True); o = cls([p], **kw)
//     for t in range(5): p.grad = torch.tensor([0.3, -0.7, 1.1]) * (t - 2.5) + 0.1 * p.detach(); o.step()
//     print(p.tolist())
//   run(torch.optim.Adadelta, lr=0.5, rho=0.9, eps=1e-6, weight_decay=0.01)
//   run(torch.optim.Adamax, lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
//   run(torch.optim.Rprop, lr=0.01, etas=(0.5, 1.2), step_sizes=(1e-6, 50))
template <class Optimizer>
void expect_numbers(const typename Optimizer::Options& options, const std::array<double, 3>& expected) {
  auto parameter = torch::tensor({1.0, -2.0, 0.5}, torch::kDouble).requires_grad_();
  Optimizer optimizer({parameter}, options);
  const auto slope = torch::tensor({0.3, -0.7, 1.1}, torch::kDouble);
  for (int step = 0; step < 5; ++step) {
    parameter.mutable_grad() = slope * (step - 2.5) + 0.1 * parameter.detach();
    optimizer.step();
  }
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(parameter[i].item<double>(), expected[static_cast<std::size_t>(i)]);
  }
}

TEST(OwnOptimizers, HaveTheNumbersOfPyTorchs) {
  using namespace optim;
  expect_numbers<Adadelta>(AdadeltaOptions(0.5).weight_decay(0.01),
                           {1.0002861522258895, -2.0004762234547138, 0.5013573912918572});
  expect_numbers<Adamax>(AdamaxOptions(0.01).betas({0.9, 0.99}).weight_decay(0.01),
                         {1.0246670463522027, -2.0253428359397923, 0.5281231463368167});
  expect_numbers<Rprop>(RpropOptions(0.01), {1.0292, -2.0292, 0.5292});
}

/// As an archive and in a checkpoint, sharded and not, and goes on as if it had not been interrupted.
template <class Optimizer>
void expect_resumed(double rate) {
  const auto train = [](torch::optim::Optimizer& optimizer, Tensors& all, int from, int to) {
    for (int step = from; step < to; ++step) {
      set_gradients(all, step);
      optimizer.step();
    }
  };
  auto all = parameters();
  Optimizer optimizer(all, typename OptimizerTypes<Optimizer>::Options(0.3));
  optimizer.param_groups()[0].options().set_lr(rate);
  train(optimizer, all, 0, 4);
  std::ostringstream archive;
  torch::save(optimizer, archive);
  const TemporaryFolder folder;
  const auto path = folder / "optimizer.safetensors";
  Checkpoint checkpoint;
  checkpoint.add("optimizer", optimizer);
  checkpoint.save(path);
  const auto halfway = [&] {
    Tensors copies;
    for (const auto& each : all) copies.push_back(each.detach().clone().set_requires_grad(true));
    return copies;
  };
  auto from_archive = halfway();
  auto from_checkpoint = halfway();
  auto sharded = halfway();
  train(optimizer, all, 4, 8);

  Optimizer second(from_archive);
  std::istringstream in(archive.str());
  torch::load(second, in);
  // libtorch does not read options back.
  second.param_groups()[0].options().set_lr(rate);
  train(second, from_archive, 4, 8);
  EXPECT_TRUE(equal(from_archive, all));

  Optimizer third(from_checkpoint);
  Checkpoint again;
  again.add("optimizer", third);
  again.load(path);
  EXPECT_EQ(third.param_groups()[0].options().get_lr(), rate);
  train(third, from_checkpoint, 4, 8);
  EXPECT_TRUE(equal(from_checkpoint, all));

  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    Tensors own;
    for (const auto& each : sharded) own.push_back(each.detach().clone().set_requires_grad(true));
    ZeroOptimizer<Optimizer> zero(own, typename OptimizerTypes<Optimizer>::Options(), {.process_group = group});
    Checkpoint into;
    into.add("optimizer", zero);
    into.load(path, group);
    train(zero, own, 4, 8);
    EXPECT_TRUE(equal(own, all)) << "with ZeRO";
  });
  auto others = parameters();
  torch::optim::SGD stranger(others, 0.1);
  Checkpoint wrong;
  wrong.add("optimizer", stranger);
  EXPECT_ERROR(CheckpointError, wrong.load(path), "the optimizer there is");
}

TEST(OwnOptimizers, AreSavedAndGoOn) {
  expect_resumed<optim::Adadelta>(0.02);
  expect_resumed<optim::Adamax>(0.02);
  expect_resumed<optim::Rprop>(0.02);
  expect_resumed<optim::Adagrad>(0.02);
  expect_resumed<optim::RMSprop>(0.02);
}

TEST(OwnOptimizers, RefuseWhatTheyCannotDo) {
  const auto all = [] { return parameters(); };
  EXPECT_ERROR(ValueError, optim::Adadelta(all(), optim::AdadeltaOptions(-1)), "Adadelta: lr cannot be -1");
  EXPECT_ERROR(ValueError, optim::Adadelta(all(), optim::AdadeltaOptions().rho(2)), "Adadelta: rho cannot be 2");
  EXPECT_ERROR(ValueError, optim::Adamax(all(), optim::AdamaxOptions().betas({0.9, 1})), "Adamax: beta2 cannot be 1");
  EXPECT_ERROR(ValueError, optim::Rprop(all(), optim::RpropOptions().eta_plus(0.5)), "Rprop: eta_plus cannot be 0.5");
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(all(), std::make_unique<optim::RpropOptions>(optim::RpropOptions().eta_minus(1)));
  EXPECT_ERROR(ValueError, optim::Rprop(std::move(groups)), "Rprop: eta_minus cannot be 1");
  auto parameter = torch::ones({4, 2}).requires_grad_();
  parameter.mutable_grad() = torch::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), torch::ones({1, 2}), {4, 2});
  EXPECT_ERROR(ValueError, optim::RMSprop({parameter}).step(), "RMSprop: a sparse gradient");
  EXPECT_ERROR(ValueError, optim::Adamax({parameter}).step(), "Adamax: a sparse gradient");
  optim::SGD({parameter}, 1.0).step();
  EXPECT_EQ(parameter.sum().item<double>(), 6);
}

// --- loss scaling ---------------------------------------------------------------------------------------------------

/// One weight of two elements with this gradient (before unscaling).
struct Weight {
  explicit Weight(double rate = 1) : optimizer({value}, rate) {}
  void gradient(double first, double second) { value.mutable_grad() = torch::tensor({first, second}); }
  double first() const { return value[0].item<double>(); }

  torch::Tensor value = torch::zeros({2}).set_requires_grad(true);
  torch::optim::SGD optimizer;
};

TEST(GradScaler, ScalesUnscalesAndSteps) {
  Weight weight;
  GradScaler scaler({.init_scale = 1024});
  const auto loss = (weight.value * torch::tensor({3.0F, 5.0F})).sum();
  scaler.scale(loss).backward();
  EXPECT_EQ(weight.value.grad()[0].item<double>(), 3072);
  EXPECT_TRUE(scaler.step(weight.optimizer));
  scaler.update();
  EXPECT_TRUE(weight.value.equal(torch::tensor({-3.0F, -5.0F})));
  EXPECT_EQ(scaler.scale(), 1024);
}

TEST(GradScaler, GrowsAfterGoodStepsAndBacksOffAfterBadOnes) {
  Weight weight;
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
  const auto iteration = [&](double gradient) {
    weight.gradient(gradient, 1);
    const bool stepped = scaler.step(weight.optimizer);
    scaler.update();
    return stepped;
  };
  EXPECT_TRUE(iteration(1));
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.growth_tracker(), 1);
  EXPECT_TRUE(iteration(1));
  EXPECT_EQ(scaler.scale(), 32);
  const auto before = weight.value.detach().clone();
  for (const double bad : {infinity, -infinity, nan}) EXPECT_FALSE(iteration(bad));
  EXPECT_TRUE(weight.value.equal(before)) << "left out";
  EXPECT_EQ(scaler.scale(), 0.5);
  EXPECT_TRUE(iteration(1));
  EXPECT_FALSE(iteration(nan));
  EXPECT_EQ(scaler.growth_tracker(), 0) << "in a row";
  scaler.update(3e38);
  iteration(1);
  iteration(1);
  EXPECT_EQ(scaler.scale(), 3e38) << "not beyond what float has";
}

TEST(GradScaler, RanksLeaveOutTheSameSteps) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    for (const bool together : {true, false}) {
      Weight weight;
      GradScaler scaler({.init_scale = 2, .process_group = together ? group : nullptr});
      weight.gradient(group->rank() == 1 ? nan : 2, 2);
      const bool stepped = scaler.step(weight.optimizer);
      scaler.update();
      EXPECT_EQ(stepped, !together && group->rank() != 1);
      EXPECT_EQ(scaler.scale(), stepped ? 2 : 1);
    }
    // Beneath a sharded optimizer, with a rank that has no gradient at all.
    Tensors all = parameters();
    ZeroOptimizer<torch::optim::SGD> zero(all, 1.0, {.process_group = group});
    GradScaler scaler({.init_scale = 2, .process_group = group});
    set_gradients(all, 0);
    if (group->rank() == 0) all[0].mutable_grad().reset();
    EXPECT_TRUE(scaler.step(zero));
    scaler.update();
  });
}

TEST(GradScaler, CallsOutOfOrderAreErrors) {
  Weight weight;
  weight.gradient(1, 1);
  GradScaler scaler({.init_scale = 2});
  EXPECT_ERROR(Error, scaler.update(), "before any step");
  scaler.unscale_(weight.optimizer);
  EXPECT_EQ(weight.value.grad()[0].item<double>(), 0.5);
  EXPECT_ERROR(Error, scaler.unscale_(weight.optimizer), "already");
  EXPECT_TRUE(scaler.step(weight.optimizer));
  EXPECT_EQ(weight.first(), -0.5) << "not unscaled again";
  EXPECT_ERROR(Error, scaler.step(weight.optimizer), "already");
  EXPECT_ERROR(Error, scaler.unscale_(weight.optimizer), "after step");
  scaler.update();
  weight.gradient(1, 1);
  EXPECT_TRUE(scaler.step(weight.optimizer));

  auto half = torch::zeros({2}, torch::kHalf).set_requires_grad(true);
  half.mutable_grad() = torch::ones({2}, torch::kHalf);
  torch::optim::SGD halves({half}, 1);
  EXPECT_ERROR(ValueError, scaler.unscale_(halves), "half precision");
  EXPECT_ERROR(ValueError, GradScaler({.growth_factor = 1}), "growth_factor");
  EXPECT_ERROR(ValueError, GradScaler({.backoff_factor = 1}), "backoff_factor");
}

TEST(GradScaler, CanBeOffAndSaved) {
  Weight weight;
  weight.gradient(nan, 1);
  GradScaler off({.enabled = false});
  EXPECT_EQ(off.scale(torch::ones({})).item<double>(), 1);
  EXPECT_EQ(off.scale(), 1);
  EXPECT_TRUE(off.step(weight.optimizer));
  off.update();

  const TemporaryFolder folder;
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  weight.gradient(1, 1);
  scaler.step(weight.optimizer);
  scaler.update();
  Checkpoint saving;
  saving.add("scaler", scaler);
  saving.save(folder / "scaler");
  GradScaler resumed;
  Checkpoint loading;
  loading.add("scaler", resumed);
  loading.load(folder / "scaler");
  EXPECT_EQ(resumed.scale(), 8);
  EXPECT_EQ(resumed.growth_tracker(), 1);
  for (int i = 0; i < 2; ++i) {
    weight.gradient(1, 1);
    resumed.step(weight.optimizer);
    resumed.update();
  }
  EXPECT_EQ(resumed.scale(), 16) << "after the third";
}

// --- clipping -------------------------------------------------------------------------------------------------------

TEST(ClipGradNorm, IsThatOfLibtorch) {
  for (const double p : {1.0, 2.0, 3.0, infinity}) {
    for (const double max_norm : {0.5, 1000.0}) {
      auto mine = parameters();
      auto theirs = parameters();
      set_gradients(mine, 2);
      set_gradients(theirs, 2);
      mine.erase(mine.begin() + 3);  // libtorch has no norm infinity of nothing
      theirs.erase(theirs.begin() + 3);
      const auto norm = clip_grad_norm_(mine, max_norm, {.norm_type = p});
      EXPECT_DOUBLE_EQ(norm.item<double>(), torch::nn::utils::clip_grad_norm_(theirs, max_norm, p));
      for (std::size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(mine[i].grad().defined(), theirs[i].grad().defined());
        EXPECT_TRUE(!mine[i].grad().defined() || torch::allclose(mine[i].grad(), theirs[i].grad(), 1e-14, 0));
      }
    }
  }
}

TEST(ClipGradNorm, OverAGroupIsThatOfAllGradientsTogether) {
  for (const double p : {1.0, 2.0, 2.5, infinity}) {
    auto whole = parameters();
    set_gradients(whole, 0);
    const auto expected = clip_grad_norm_(whole, 0.7, {.norm_type = p});
    with_torch_threads(3, [&](const ProcessGroupPtr& group) {
      auto all = parameters();
      set_gradients(all, 0);
      Tensors shard;  // rank 2 has nothing
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (static_cast<int>(i % 2) == group->rank()) shard.push_back(all[i]);
      }
      const auto norm = clip_grad_norm_(shard, 0.7, {.norm_type = p, .process_group = group});
      EXPECT_NEAR(norm.item<double>(), expected.item<double>(), group->rank() == 2 ? 1e-5 : 1e-13);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (static_cast<int>(i % 2) != group->rank()) continue;
        EXPECT_TRUE(torch::allclose(all[i].grad(), whole[i].grad(), 1e-13, 1e-15));
      }
    });
  }
}

TEST(ClipGradNorm, SaysWhatIsNotFiniteAndTakesSparseGradients) {
  Weight weight;
  weight.gradient(nan, 2);
  EXPECT_ERROR(Error, clip_grad_norm_({weight.value}, 1, {.error_if_nonfinite = true}), "is nan: nothing was scaled");
  EXPECT_EQ(weight.value.grad()[1].item<double>(), 2);
  weight.gradient(1, 1);
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Weight own;
    own.gradient(group->rank() == 0 ? infinity : 1, 1);
    EXPECT_ERROR(Error, clip_grad_norm_({own.value}, 1, {.error_if_nonfinite = true, .process_group = group}),
                 "is inf");
  });
  EXPECT_ERROR(ValueError, clip_grad_norm_({weight.value}, 1, {.norm_type = 0}), "norm_type 0");
  EXPECT_ERROR(ValueError, clip_grad_norm_({weight.value}, -1), "max_norm -1");
  EXPECT_EQ(clip_grad_norm_({}, 1).item<double>(), 0);

  auto table = torch::zeros({4, 2}).set_requires_grad(true);
  // Row 1 twice: 3 and 4 together, not 5.
  table.mutable_grad() =
      torch::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::tensor({{3.0F, 0.0F}, {4.0F, 0.0F}}), {4, 2});
  EXPECT_FLOAT_EQ(clip_grad_norm_({table, table}, 3.5).item<float>(), 7);
  EXPECT_NEAR(table.grad().to_dense()[1][0].item<double>(), 3.5, 1e-6);
}

}  // namespace
}  // namespace cohort::test
