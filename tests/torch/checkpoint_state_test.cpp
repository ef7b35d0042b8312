// SPDX-License-Identifier: BSD-3-Clause
//
// What checkpoints hold beyond modules: optimizers of all classes, schedulers, objects of users, what each rank has of
// its own, and state that is spread over the ranks.
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/post_local_sgd.h>
#include <cohort/torch/power_sgd.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "support/temporary.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;

/// Two groups, of which the second has options of its own and a parameter that never gets a gradient.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> two_groups_of(std::vector<torch::Tensor>& all, const Options& second) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{all[0]});
  groups.emplace_back(std::vector<torch::Tensor>{all[1], all[2]}, std::make_unique<Options>(second));
  return groups;
}
std::vector<torch::Tensor> three_parameters() {
  return {torch::linspace(-1, 1, 6, torch::kDouble).reshape({2, 3}).t().detach().set_requires_grad(true),
          torch::linspace(1, 2, 4, torch::kFloat).set_requires_grad(true),
          torch::ones({2}, torch::kDouble).set_requires_grad(true)};
}
void train_some(torch::optim::Optimizer& optimizer, std::vector<torch::Tensor>& all, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      auto loss = (all[0] * (1.0 + 0.1 * step)).pow(2).sum() + all[1].to(torch::kDouble).sin().pow(2).sum();
      loss.backward();
      return loss;
    });
  }
}

/// Resumes with other options and other state, which are replaced.
template <class Optimizer, class Options>
void expect_exact_resume(const Options& options, const Options& second, bool groups = true) {
  const TemporaryFolder folder;
  const auto make = [&](std::vector<torch::Tensor>& all, const Options& of_second) {
    if (!groups) return std::make_unique<Optimizer>(std::vector<torch::Tensor>{all[1]}, options);
    return std::make_unique<Optimizer>(two_groups_of(all, of_second), options);
  };
  auto whole = three_parameters();
  const auto optimizer = make(whole, second);
  train_some(*optimizer, whole, 0, 4);
  Checkpoint saving;
  for (std::size_t i = 0; i < whole.size(); ++i) saving.add("p" + std::to_string(i), whole[i]);
  saving.add("optimizer", *optimizer);
  saving.save(folder / "file");
  train_some(*optimizer, whole, 4, 9);

  auto resumed = three_parameters();
  const auto other = make(resumed, options);
  train_some(*other, resumed, 0, 1);
  Checkpoint loading;
  for (std::size_t i = 0; i < resumed.size(); ++i) loading.add("p" + std::to_string(i), resumed[i]);
  loading.add("optimizer", *other);
  loading.load(folder / "file");
  for (std::size_t i = 0; i < other->param_groups().size(); ++i) {
    EXPECT_TRUE(static_cast<const Options&>(other->param_groups()[i].options()) ==
                static_cast<const Options&>(optimizer->param_groups()[i].options()));
  }
  train_some(*other, resumed, 4, 9);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(whole[i].equal(resumed[i])) << i;
}

TEST(CheckpointState, EveryOptimizerOfLibtorchResumesToTheBit) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  expect_exact_resume<SGD>(SGDOptions(0.1), SGDOptions(0.01).momentum(0.9).dampening(0.1).weight_decay(0.2));
  expect_exact_resume<SGD>(SGDOptions(0.1).momentum(0.5).nesterov(true), SGDOptions(0.3));
  expect_exact_resume<Adam>(
      AdamOptions(0.1), AdamOptions(0.02).betas(std::make_tuple(0.8, 0.9)).eps(1e-3).weight_decay(0.1).amsgrad(true));
  expect_exact_resume<AdamW>(AdamWOptions(0.1).amsgrad(true),
                             AdamWOptions(0.02).betas(std::make_tuple(0.8, 0.9)).weight_decay(0.3));
  expect_exact_resume<Adagrad>(AdagradOptions(0.1), AdagradOptions(0.2).lr_decay(0.1).weight_decay(0.1).eps(1e-3));
  expect_exact_resume<RMSprop>(RMSpropOptions(0.1),
                               RMSpropOptions(0.01).alpha(0.5).momentum(0.3).centered(true).weight_decay(0.1));
  expect_exact_resume<LBFGS>(LBFGSOptions(0.1).max_iter(3).history_size(4), LBFGSOptions(0.1), false);
  expect_exact_resume<LBFGS>(LBFGSOptions(0.5).max_iter(2).max_eval(5).line_search_fn("strong_wolfe"), LBFGSOptions(1),
                             false);
}

/// With state that a checkpoint cannot see, and the same with the members that show it.
struct OwnOptimizer : torch::optim::SGD {
  using SGD::SGD;
  double secret_factor = 1;
};
struct ShownOptimizer : OwnOptimizer {
  using OwnOptimizer::OwnOptimizer;
  StateDict state_dict() const {
    StateDict state;
    state.set("secret_factor", secret_factor);
    return state;
  }
  void load_state_dict(const StateDict& state) { secret_factor = state.get<double>("secret_factor"); }
};

TEST(CheckpointState, AnOptimizerOfAnotherClassIsRefusedByNameOrShowsItsState) {
  const TemporaryFolder folder;
  auto weight = torch::ones({2}).set_requires_grad(true);
  OwnOptimizer own({weight}, 0.1);
  Checkpoint checkpoint;
  EXPECT_ERROR(CheckpointError, checkpoint.add("optimizer", own), "OwnOptimizer");
  EXPECT_ERROR(CheckpointError, checkpoint.add("optimizer", own), "load_state_dict");
  ShownOptimizer shown({weight}, 0.1);
  shown.secret_factor = 3;
  checkpoint.add("optimizer", shown);
  checkpoint.save(folder / "file");
  shown.secret_factor = 0;
  checkpoint.load(folder / "file");
  EXPECT_EQ(shown.secret_factor, 3);
  torch::optim::Adam adam({weight}, 0.1);
  torch::optim::SGD sgd({weight}, 0.1);
  Checkpoint of_adam;
  of_adam.add("optimizer", adam);
  of_adam.save(folder / "adam");
  Checkpoint of_sgd;
  of_sgd.add("optimizer", sgd);
  EXPECT_ERROR(CheckpointError, of_sgd.load(folder / "adam"),
               "the optimizer there is \"Adam\", and the one here is SGD");
}

TEST(CheckpointState, ASchedulerGoesOnWhereItWas) {
  const TemporaryFolder folder;
  auto weight = torch::ones({2}).set_requires_grad(true);
  const auto run = [&](int steps, bool save, bool load) {
    torch::optim::SGD optimizer({weight}, 1.0);
    torch::optim::StepLR scheduler(optimizer, 3, 0.5);
    Checkpoint checkpoint;
    checkpoint.add("optimizer", optimizer);
    checkpoint.add("scheduler", scheduler);
    if (load) checkpoint.load(folder / "file");
    for (int i = 0; i < steps; ++i) scheduler.step();
    if (save) checkpoint.save(folder / "file");
    return optimizer.param_groups()[0].options().get_lr();
  };
  const auto expected = run(10, false, false);
  run(5, true, false);
  EXPECT_EQ(run(5, false, true), expected);
  EXPECT_LT(expected, 1);
}

/// An object of a user, with a check.
struct Progress {
  StateDict state_dict() const {
    StateDict state;
    state.set("best", best);
    state.set("seed", seed);
    state.set("losses", losses);
    state.set("places", places);
    return state;
  }
  void check_state_dict(const StateDict& state) const {
    if (state.get<std::vector<std::int64_t>>("places").size() != places.size())
      throw std::runtime_error("other places");
  }
  void load_state_dict(const StateDict& state) {
    best = state.get<float>("best");
    seed = state.get<std::uint64_t>("seed");
    losses = state.tensor("losses");
    places = state.get<std::vector<std::int64_t>>("places");
  }
  float best = 0.1F;
  std::uint64_t seed = ~std::uint64_t{0};
  torch::Tensor losses = torch::arange(3);
  std::vector<std::int64_t> places = {3, -1};
};

TEST(CheckpointState, ObjectsOfUsersAreCheckedBeforeAnythingChanges) {
  const TemporaryFolder folder;
  Progress progress;
  int step = 4;
  Checkpoint checkpoint;
  checkpoint.add("step", step);
  checkpoint.add("progress", progress);
  checkpoint.save(folder / "file");
  progress = {.best = 0, .seed = 0, .losses = torch::zeros({1}), .places = {0, 0}};
  step = 0;
  checkpoint.load(folder / "file");
  EXPECT_EQ(progress.best, 0.1F);
  EXPECT_EQ(progress.seed, ~std::uint64_t{0});
  EXPECT_TRUE(progress.losses.equal(torch::arange(3)));
  EXPECT_EQ(progress.places, (std::vector<std::int64_t>{3, -1}));
  progress.losses.add_(1);  // its own memory
  step = 0;
  progress.places = {};
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "file"), "file: 'progress': other places");
  EXPECT_EQ(step, 0) << "nothing was loaded";
  std::int8_t narrow = 0;
  int large = 1000;
  Checkpoint wide;
  wide.add("number", large);
  wide.save(folder / "large");
  Checkpoint tight;
  tight.add("number", narrow);
  EXPECT_ERROR(CheckpointError, tight.load(folder / "large"), "does not fit into its type");
}

TEST(CheckpointStateProcesses, WhatEachRankHasOfItsOwnComesBackToThatRank) {
  const TemporaryFolder folder;
  for (const bool sharded : {false, true}) {
    const auto path = folder / (sharded ? "shards" : "file");
    with_torch_processes(3, [&](const ProcessGroupPtr& group) {
      const int rank = group->rank();
      std::int64_t number = 10 + rank;
      auto tensor = torch::full({rank + 1}, rank);  // of another shape on each rank
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank));
      Progress progress{.best = static_cast<float>(rank)};
      torch::nn::Linear own(1 + rank, 1);
      const auto weight = own->weight.detach().clone();
      int shared = 100 + rank;
      Checkpoint checkpoint;
      checkpoint.add_per_rank("number", number);
      checkpoint.add_per_rank("tensor", tensor);
      checkpoint.add_per_rank("progress", progress);
      checkpoint.add_per_rank("own", own);
      checkpoint.add("generator", generator);
      checkpoint.add("shared", shared);
      checkpoint.save(path, group, {.sharded = sharded});
      const auto drawn = torch::rand({4}, generator);
      const auto dropped = torch::rand({4});
      number = 0;
      tensor.zero_();
      progress.best = -1;
      {
        const torch::NoGradGuard no_grad;
        own->weight.zero_();
      }
      checkpoint.load(path, group);
      EXPECT_EQ(number, 10 + rank);
      EXPECT_TRUE(tensor.eq(rank).all().item<bool>());
      EXPECT_EQ(progress.best, static_cast<float>(rank));
      EXPECT_TRUE(own->weight.equal(weight));
      EXPECT_EQ(shared, 100) << "rank 0's";
      EXPECT_TRUE(torch::rand({4}, generator).equal(drawn));
      EXPECT_TRUE(torch::rand({4}).equal(dropped)) << "the default generator";
    });
    // With another number of ranks they stay as they are.
    with_torch_processes(2, [&](const ProcessGroupPtr& group) {
      std::int64_t number = 77;
      int shared = 0;
      Checkpoint checkpoint;
      checkpoint.add_per_rank("number", number);
      checkpoint.add("shared", shared);
      checkpoint.load(path, group);
      EXPECT_EQ(number, 77);
      EXPECT_EQ(shared, 100);
    });
  }
}

TEST(CheckpointStateProcesses, ErrorFeedbackOfEachRankIsRestored) {
  const TemporaryFolder folder;
  with_torch_processes(2, [&](const ProcessGroupPtr& group) {
    const auto run = [&](int begin, int end, bool save, bool load) {
      torch::manual_seed(3);
      torch::nn::Linear net(torch::nn::LinearOptions(16, 16).bias(false));
      DistributedDataParallel ddp(net, {.process_group = group});
      const auto power = std::make_shared<PowerSgdState>(
          PowerSgdOptions{.process_group = group, .start_power_sgd_iter = 2, .random_seed = 7});
      ddp.register_comm_hook(hooks::power_sgd(power));
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      Checkpoint checkpoint;
      checkpoint.add("model", net);
      checkpoint.add("optimizer", optimizer);
      checkpoint.add_per_rank("power_sgd", *power);
      if (load) checkpoint.load(folder / "file", group);
      for (int step = begin; step < end; ++step) {
        optimizer.zero_grad();
        const auto x = torch::sin(torch::arange(64.0).reshape({4, 16}) * (step + 1 + group->rank()));
        ddp.forward(x.to(torch::kFloat)).pow(2).sum().backward();
        optimizer.step();
      }
      if (save) checkpoint.save(folder / "file", group);
      EXPECT_EQ(power->iteration(), end);
      return net->weight.detach().clone();
    };
    const auto expected = run(0, 8, false, false);
    run(0, 5, true, false);
    EXPECT_TRUE(run(5, 8, false, true).equal(expected)) << "to the bit";
  });
}

TEST(CheckpointState, PostLocalSgdIsSavedWithItsAverager) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto run = [&](int begin, int end, bool save, bool load) {
      auto weight = torch::full({2}, 1.0 + group->rank()).set_requires_grad(true);
      torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.1).momentum(0.5));
      PostLocalSgdOptimizer optimizer(sgd, std::make_shared<PeriodicModelAverager>(ModelAveragerOptions{
                                               .process_group = group, .period = 3, .warmup_steps = 1}));
      Checkpoint checkpoint;
      checkpoint.add_per_rank("weight", weight);
      checkpoint.add_per_rank("optimizer", optimizer);
      if (load) checkpoint.load(folder / "file", group);
      for (int step = begin; step < end; ++step) {
        weight.mutable_grad() = torch::full({2}, 0.1 * (step + group->rank()));
        optimizer.step();
      }
      if (save) checkpoint.save(folder / "file", group);
      EXPECT_EQ(optimizer.averager().step(), end);
      return weight.detach().clone();
    };
    const auto expected = run(0, 8, false, false);
    run(0, 5, true, false);
    EXPECT_TRUE(run(5, 8, false, true).equal(expected));
  });
}

TEST(CheckpointState, ShardsOfAZeroOptimizerFitAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const auto path = folder / "step-1";
  const auto make = [] {
    std::vector<torch::Tensor> all;
    for (int i = 0; i < 5; ++i) all.push_back(torch::full({i + 2, 3}, 0.1 * i).set_requires_grad(true));
    return all;
  };
  const auto train = [](torch::optim::Optimizer& optimizer, std::vector<torch::Tensor>& all, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      for (auto& each : all) each.mutable_grad() = torch::sin(each.detach() * (step + 1));
      optimizer.step();
    }
  };
  auto expected = make();
  torch::optim::AdamW plain(expected, torch::optim::AdamWOptions(0.01));
  train(plain, expected, 0, 9);
  const auto same_as_expected = [&](const std::vector<torch::Tensor>& all) {
    return std::equal(all.begin(), all.end(), expected.begin(),
                      [](const auto& a, const auto& b) { return a.equal(b); });
  };
  const auto add = [](Checkpoint& checkpoint, std::vector<torch::Tensor>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) checkpoint.add("p" + std::to_string(i), all[i]);
  };
  with_torch_threads(3, [&](const ProcessGroupPtr& group) {
    auto mine = make();
    ZeroOptimizer<torch::optim::AdamW> zero(mine, torch::optim::AdamWOptions(0.01), {.process_group = group});
    train(zero, mine, 0, 5);
    Checkpoint checkpoint;
    add(checkpoint, mine);
    checkpoint.add("optimizer", zero);
    checkpoint.save(path, group, {.sharded = true});
    checkpoint.save(path, group, {.sharded = true});              // over itself
    EXPECT_ERROR(Error, zero.state_dict(), "consolidate_state");  // it was never collected
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 1) << "nothing left behind";
  EXPECT_EQ(std::distance(fs::directory_iterator(path), fs::directory_iterator()), 4) << "three files and an index";
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
  for (const int ranks : {2, 3}) {
    with_torch_threads(ranks, [&](const ProcessGroupPtr& group) {
      auto mine = make();
      ZeroOptimizer<torch::optim::AdamW> zero(mine, torch::optim::AdamWOptions(1), {.process_group = group});
      train(zero, mine, 0, 1);
      Checkpoint checkpoint;
      add(checkpoint, mine);
      checkpoint.add("optimizer", zero);
      checkpoint.load(path, group);
      train(zero, mine, 5, 9);
      EXPECT_TRUE(same_as_expected(mine)) << "on " << ranks;
    });
  }
  auto alone = make();
  torch::optim::AdamW unsharded(alone, torch::optim::AdamWOptions(1));
  Checkpoint checkpoint;
  add(checkpoint, alone);
  checkpoint.add("optimizer", unsharded);
  checkpoint.load(path);
  train(unsharded, alone, 5, 9);
  EXPECT_TRUE(same_as_expected(alone)) << "without ZeRO";

  fs::remove(path + "/model-00002-of-00003.safetensors");
  EXPECT_ERROR(CheckpointError, checkpoint.load(path), "model-00002-of-00003.safetensors: cannot be opened");
  EXPECT_EQ(Checkpoint::latest(folder / ""), std::nullopt);
}

TEST(CheckpointState, FoldersOfASeriesArePrunedAndTheFilesOfOneSaveBelongTogether) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    int step = 0;
    Checkpoint checkpoint;
    checkpoint.add("step", step);
    for (step = 1; step <= 4; ++step) {
      checkpoint.save(folder / ("step-" + std::to_string(step)), group, {.keep = 1, .sharded = true});
    }
    const auto mine = folder / ("mine-" + std::to_string(group->rank()));
    fs::create_directory(mine);
    std::ofstream(mine + "/notes.txt") << "keep";
    EXPECT_ERROR(CheckpointError, checkpoint.save(folder / "mine-0", group, {.sharded = true}),
                 "exists and is not a checkpoint");
  });
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"mine-0", "mine-1", "step-3", "step-4"}));
  const std::string second = "/model-00002-of-00002.safetensors";
  fs::copy_file(folder / "step-3" + second, folder / "step-4" + second, fs::copy_options::overwrite_existing);
  int step = 0;
  Checkpoint checkpoint;
  checkpoint.add("step", step);
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "step-4"), "of different saves");
  EXPECT_EQ(Checkpoint::latest(folder / ""), folder / "step-3");
}

TEST(CheckpointState, ARunGoesOnOverTheTornRemainsOfItsNewestFolder) {
  const TemporaryFolder folder;
  int step = 0;
  Checkpoint checkpoint;
  checkpoint.add("step", step);
  const auto path = [&](int number) { return folder / ("step-" + std::to_string(number)); };
  const auto save = [&] { checkpoint.save(path(step), nullptr, {.keep = 1, .sharded = true}); };
  for (step = 1; step <= 3; ++step) save();
  const auto shard = path(3) + "/model-00001-of-00001.safetensors";
  fs::resize_file(shard, fs::file_size(shard) / 2);
  ASSERT_EQ(Checkpoint::latest(folder / ""), path(2));
  checkpoint.load(path(2));
  EXPECT_EQ(step, 2);
  for (step = 3; step <= 4; ++step) save();
  EXPECT_EQ(Checkpoint::latest(folder / ""), path(4));
  checkpoint.load(path(3));
  EXPECT_EQ(step, 3);
}

TEST(CheckpointState, WhatIsNotSignedNeitherEndsNorHidesASignedSeries) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  int step = 0;
  Checkpoint signs({.secret = secret});
  signs.add("step", step);
  Checkpoint plain;
  plain.add("step", step);
  for (const bool sharded : {false, true}) {
    const auto here = folder / (sharded ? "folders" : "files");
    const auto path = [&](int number) { return here + "/step-" + std::to_string(number); };
    for (step = 1; step <= 2; ++step) signs.save(path(step), nullptr, {.keep = 2, .sharded = sharded});
    for (step = 1001; step <= 1003; ++step) plain.save(path(step), nullptr, {.sharded = sharded});
    for (step = 3; step <= 4; ++step) signs.save(path(step), nullptr, {.keep = 2, .sharded = sharded});
    EXPECT_EQ(Checkpoint::latest(here, secret), path(4));
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(here)) names.insert(entry.path().filename());
    EXPECT_EQ(names, (std::set<std::string>{"step-2", "step-3", "step-4", "step-1001", "step-1002", "step-1003"}));
    // Whoever has no secret counts on from the highest, and deletes none that is signed.
    step = 1004;
    plain.save(path(step), nullptr, {.keep = 0, .sharded = sharded});
    EXPECT_EQ(Checkpoint::latest(here), path(1004));
    EXPECT_EQ(Checkpoint::latest(here, secret), path(4));
    EXPECT_TRUE(fs::exists(path(2)));
  }
}

TEST(CheckpointState, AWrapperIsSavedAndLoadedByLibtorchToo) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto make = [&](double value) {
      torch::nn::Linear net(3, 2);
      const torch::NoGradGuard no_grad;
      for (auto& each : net->parameters()) each.fill_(value);
      return std::make_shared<DistributedDataParallel<torch::nn::LinearImpl>>(net, DdpOptions{.process_group = group});
    };
    const auto train = [&](auto& ddp) {
      ddp.zero_grad();
      ddp.forward(torch::full({2, 3}, 1.0 + group->rank())).sum().backward();
      const torch::NoGradGuard no_grad;
      for (auto& each : ddp.parameters()) each.sub_(0.01 * each.grad());
    };
    const auto saved = make(1);
    train(*saved);
    std::stringstream wrapped;
    torch::save(saved, wrapped);
    std::stringstream bare;
    torch::save(saved->module(), bare);
    auto into_wrapper = make(5);
    torch::load(into_wrapper, wrapped);
    auto into_module = make(6);
    auto module = into_module->module();
    torch::load(module, bare);
    train(*saved);
    for (const auto& each : {into_wrapper, into_module}) {
      train(*each);  // which still averages
      EXPECT_TRUE(each->module()->weight.equal(saved->module()->weight))
          << each->module()->weight << saved->module()->weight << each->module()->weight.grad();
      EXPECT_TRUE(each->module()->bias.equal(saved->module()->bias));
    }
  });
}

}  // namespace
}  // namespace cohort::test
