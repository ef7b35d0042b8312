// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints: what they hold, what they refuse, and what is left after a crash.
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/sampler.h>
#include <cohort/torch/tensor.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "support/temporary.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 2));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::dropout(norm(torch::relu(first(x))), 0.5, is_training()));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};

/// Stands for DistributedDataParallel as far as names go.
struct Wrapper : torch::nn::Module {
  explicit Wrapper(std::shared_ptr<Net> net) { register_module("module", std::move(net)); }
};

std::vector<torch::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& tensor : module.parameters()) all.push_back(tensor.detach().clone());
  for (const auto& tensor : module.buffers()) all.push_back(tensor.clone());
  return all;
}
bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return x.equal(y); });
}

/// A training run with everything that must come back: weights, statistics, moments, rate, order of data, dropout.
class TrainingRun {
 public:
  TrainingRun(const ProcessGroupPtr& group, std::uint64_t seed)
      : group_(group),
        net_(seeded_net(seed)),
        sampler_(24, {.process_group = group, .seed = 3}),
        optimizer_(net_->parameters(), 0.01) {
    torch::manual_seed(seed + 100 + static_cast<std::uint64_t>(group->rank()));
    checkpoint_.add("model", net_);
    checkpoint_.add("optimizer", optimizer_);
    checkpoint_.add("sampler", sampler_);
    checkpoint_.add("step", step_);
  }

  /// Until `steps` are done in all, saving after step `save_at`.
  void train(int steps, const std::string& path = {}, int save_at = -1) {
    for (;;) {
      for (sampler_.reset(); const auto batch = sampler_.next(4);) {
        const auto index = torch::tensor(std::vector<std::int64_t>(batch->begin(), batch->end()));
        const auto x = torch::sin(index.to(torch::kDouble).unsqueeze(1) * torch::arange(1, 5));
        for (auto& buffer : net_->buffers()) group_->broadcast(buffer);  // as DistributedDataParallel does
        optimizer_.zero_grad();
        torch::mse_loss(net_->forward(x), x.slice(1, 0, 2)).backward();
        for (auto& tensor : net_->parameters()) group_->all_reduce(tensor.grad(), {.op = ReduceOp::avg()});
        optimizer_.step();
        optimizer_.param_groups()[0].options().set_lr(0.01 / (1 + ++step_));
        if (step_ == save_at) checkpoint_.save(path, group_);
        if (step_ == steps) return;
      }
      sampler_.set_epoch(sampler_.epoch() + 1);
    }
  }
  void load(const std::string& path) { checkpoint_.load(path, group_); }
  std::vector<torch::Tensor> state() const { return state_of(*net_); }
  int step() const { return step_; }

 private:
  static std::shared_ptr<Net> seeded_net(std::uint64_t seed) {
    torch::manual_seed(seed);
    return std::make_shared<Net>();
  }

  ProcessGroupPtr group_;
  std::shared_ptr<Net> net_;
  DistributedSampler sampler_;
  torch::optim::AdamW optimizer_;
  int step_ = 0;
  Checkpoint checkpoint_;
};

TEST(CheckpointProcesses, AResumedRunHasTheBitsOfOneThatWasNotInterrupted) {
  const TemporaryFolder folder;
  const auto path = folder / "run/step-8.ckpt";  // the folder is made
  with_torch_processes(2, [&](const ProcessGroupPtr& group) {
    TrainingRun whole(group, 1);
    whole.train(17, path, 8);  // three steps an epoch: in the middle of one
    TrainingRun resumed(group, 2);
    EXPECT_FALSE(same(resumed.state(), whole.state()));
    resumed.load(path);
    EXPECT_EQ(resumed.step(), 8);
    resumed.train(17);
    EXPECT_TRUE(same(resumed.state(), whole.state())) << "rank " << group->rank();
  });
}

TEST(Checkpoint, HoldsValuesTensorsAndGenerators) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    std::int64_t big = 1LL << 60;
    double rate = 0.1;
    bool flag = true;
    std::string text = "a string\nwith lines";
    auto tensor = torch::arange(6).reshape({2, 3});
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group->rank()));
    Checkpoint checkpoint({.random_state = false});
    checkpoint.add("big", big);
    checkpoint.add("rate", rate);
    checkpoint.add("flag", flag);
    checkpoint.add("text", text);
    checkpoint.add("tensor", tensor);
    checkpoint.add("view", torch::arange(10000).slice(0, 10, 20));
    checkpoint.add("generator", generator);
    EXPECT_ERROR(ValueError, checkpoint.add("flag", rate), "'flag' already");
    checkpoint.save(folder / "values.ckpt", group);
    const auto drawn = torch::rand({4}, generator);
    big = 0;
    rate = 0;
    flag = false;
    text.clear();
    tensor.zero_();
    checkpoint.load(folder / "values.ckpt", group);
    EXPECT_EQ(big, 1LL << 60);
    EXPECT_EQ(rate, 0.1);
    EXPECT_TRUE(flag);
    EXPECT_EQ(text, "a string\nwith lines");
    EXPECT_TRUE(tensor.equal(torch::arange(6).reshape({2, 3})));
    EXPECT_TRUE(torch::rand({4}, generator).equal(drawn)) << "each rank its own";

    Checkpoint other({.random_state = false});
    other.add("rate", big);
    EXPECT_ERROR(CheckpointError, other.load(folder / "values.ckpt", group), "another type");
    Checkpoint more({.random_state = false});
    more.add("epoch", big);
    EXPECT_ERROR(CheckpointError, more.load(folder / "values.ckpt", group), "there is no 'epoch'");
    more.load(folder / "values.ckpt", group, {.allow_missing = true});
    EXPECT_EQ(big, 1LL << 60);
  });
  EXPECT_LT(fs::file_size(folder / "values.ckpt"), 30000U) << "of a view its own elements alone";
  // With another number of ranks a generator stays as it is.
  auto generator = at::detail::createCPUGenerator(77);
  const auto expected = torch::rand({3}, at::detail::createCPUGenerator(77));
  Checkpoint alone;
  alone.add("generator", generator);
  alone.load(folder / "values.ckpt");
  EXPECT_TRUE(torch::rand({3}, generator).equal(expected));
}

TEST(Checkpoint, WrappedAndBareModulesTakeEachOthersNames) {
  const TemporaryFolder folder;
  auto net = std::make_shared<Net>();
  Wrapper wrapper(net);
  Checkpoint bare;
  bare.add("model", net);
  bare.save(folder / "bare");
  Checkpoint wrapped;
  wrapped.add("model", wrapper);
  wrapped.save(folder / "wrapped");
  const auto before = state_of(*net);
  const auto forget = [&] {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : net->parameters()) tensor.zero_();
  };
  for (const auto& name : {"bare", "wrapped"}) {
    for (auto* const checkpoint : {&bare, &wrapped}) {
      forget();
      checkpoint->load(folder / name);
      EXPECT_TRUE(same(state_of(*net), before));
    }
  }
  EXPECT_ERROR(CheckpointError, bare.load(folder / "wrapped", nullptr, {.ignore_module_prefix = false}),
               "first.weight is missing");
}

TEST(Checkpoint, AWrappedModelIsLoadedWhereItIsAndGoesOnAveraging) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto train = [&](auto& ddp, int step) {
      ddp.zero_grad();
      ddp.forward(torch::full({2, 4}, 0.1 * step + group->rank(), torch::kFloat)).sum().backward();
      const torch::NoGradGuard no_grad;
      for (auto& each : ddp.parameters()) each.sub_(0.01 * each.grad());
    };
    const auto make = [&](int seed) {
      torch::nn::Linear net(4, 3);
      const torch::NoGradGuard no_grad;
      for (auto& each : net->parameters()) each.fill_(0.1 * seed);
      return net;
    };
    DistributedDataParallel ddp(make(1), {.process_group = group});
    for (int i = 0; i < 3; ++i) train(ddp, i);
    Checkpoint saved;
    saved.add("model", ddp);
    saved.save(folder / "model.ckpt", group);
    DistributedDataParallel again(make(9), {.process_group = group});
    train(again, 7);
    Checkpoint loaded;
    loaded.add("model", again);
    loaded.load(folder / "model.ckpt", group);
    for (int i = 3; i < 6; ++i) {
      train(ddp, i);
      train(again, i);
    }
    EXPECT_TRUE(same(state_of(*ddp.module()), state_of(*again.module())));
    const auto all = all_gather_async(*group, again.module()->weight.detach()).value();
    EXPECT_TRUE(torch::equal(all[0], all[1]));
  });
}

TEST(Checkpoint, WhatDoesNotFitIsNamedAndNothingChanges) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    auto linear = torch::nn::Linear(3, 2);
    torch::optim::SGD optimizer(linear->parameters(), 0.1);
    Checkpoint checkpoint({.random_state = false});
    checkpoint.add("model", linear);
    checkpoint.add("optimizer", optimizer);
    checkpoint.save(folder / "file", group);
    // Rank 1 alone has another model: all throw, and rank 0's is as it was.
    auto other = torch::nn::Linear(group->rank() == 1 ? 4 : 3, 2);
    const auto before = state_of(*other);
    Checkpoint into({.random_state = false});
    into.add("model", other);
    EXPECT_ERROR(CheckpointError, into.load(folder / "file", group), "weight has shape [2, 3] there and [2, 4] here");
    EXPECT_TRUE(same(state_of(*other), before));

    torch::optim::SGD fewer({linear->weight}, 0.1);
    Checkpoint parameters({.random_state = false});
    parameters.add("optimizer", fewer);
    EXPECT_ERROR(CheckpointError, parameters.load(folder / "file", group), "had other parameters");
    Checkpoint missing({.random_state = false});
    missing.add("model", std::make_shared<Net>());
    EXPECT_ERROR(CheckpointError, missing.load(folder / "file", group), "norm.running_mean is missing");
  });
}

TEST(Checkpoint, AnOptimizersStateIsReplacedNotAddedTo) {
  const TemporaryFolder folder;
  auto weight = torch::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint checkpoint;
  checkpoint.add("optimizer", optimizer);
  checkpoint.save(folder / "before the first step");
  weight.mutable_grad() = torch::ones({2});
  optimizer.step();
  EXPECT_EQ(optimizer.state().size(), 1U);
  checkpoint.load(folder / "before the first step");
  EXPECT_EQ(optimizer.state().size(), 0U);
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Checkpoint, TornDamagedAndForeignFilesAreRefusedByName) {
  const TemporaryFolder folder;
  double value = 1;
  Checkpoint checkpoint;
  checkpoint.add("value", value);
  checkpoint.save(folder / "good-1");
  checkpoint.save(folder / "good-2");
  const auto bytes = CheckpointContent::read_file(folder / "good-2", nullptr);
  const auto refused = [&](const std::string& content, const std::string& why) {
    write_file(folder / "good-2", content);
    value = 7;
    EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "good-2"), why);
    EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "good-2"), "good-2: ");
    EXPECT_EQ(value, 7);
    EXPECT_EQ(Checkpoint::latest(folder / ""), folder / "good-1");
  };
  for (const std::size_t length :
       {std::size_t{1}, std::size_t{8}, std::size_t{63}, bytes.size() / 2, bytes.size() - 1}) {
    refused(bytes.substr(0, length), "is torn");
  }
  refused("", "is torn");
  refused("something else altogether", "is not a checkpoint");
  refused(bytes + "x", "is torn");
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {  // any bit, anywhere
    auto garbled = bytes;
    const auto place = i < 64 ? static_cast<std::size_t>(i) : random() % bytes.size();
    garbled[place] = static_cast<char>(garbled[place] ^ (1 << (random() % 8)));
    refused(garbled, "good-2: is");
  }
  auto newer = bytes;
  newer[newer.find(R"("cohort.format":"2")") + 17] = '9';
  refused(newer, "is of format version \"9\"");
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "nothing"), "nothing: cannot be opened: No such file");
  EXPECT_ERROR(CheckpointError, checkpoint.load(folder / ""), "is a folder without");

  write_file(folder / "good-2", bytes);
  EXPECT_EQ(Checkpoint::latest(folder / ""), folder / "good-2");
  checkpoint.load(folder / "good-2");
  EXPECT_EQ(value, 1);
}

TEST(Checkpoint, AllRanksLearnThatTheFileCannotBeReadOrDiffers) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    std::int64_t number = group->rank();
    Checkpoint checkpoint({.random_state = false});
    checkpoint.add("number", number);
    EXPECT_ERROR(CheckpointError, checkpoint.load(folder / "nothing", group), "rank 0 failed");
    const auto own = folder / ("own-" + std::to_string(group->rank()));
    checkpoint.save(own);  // each alone
    checkpoint.save(folder / "shared", group);
    EXPECT_ERROR(CheckpointError, checkpoint.load(own, group, {.all_ranks_read = true}), "rank 1 reads another file");
    checkpoint.load(folder / "shared", group, {.all_ranks_read = true});
    EXPECT_EQ(number, 0) << "rank 0's";
    number = 5;
    checkpoint.load(folder / "shared", group);
    EXPECT_EQ(number, 0);
  });
}

TEST(CheckpointProcesses, AFolderOrDiskThatTakesNothingIsAnErrorForAllAndLosesNothing) {
  const TemporaryFolder folder;
  const auto path = folder / "last.ckpt";
  write_file(folder / "file", "not a folder");
  with_torch_processes(2, [&](const ProcessGroupPtr& group) {
    auto tensor = torch::ones({100000});
    Checkpoint checkpoint;
    checkpoint.add("tensor", tensor);
    checkpoint.save(path, group);
    tensor.fill_(2);
    EXPECT_ERROR(CheckpointError, checkpoint.save(folder / "file/last.ckpt", group), "file/last.ckpt: no file can");
    // The disk is full after 100 kB.
    const rlimit limit{100000, RLIM_INFINITY};
    std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_ERROR(CheckpointError, checkpoint.save(path, group), "last.ckpt: writing failed: File too large");
    checkpoint.load(path, group);
    EXPECT_EQ(tensor.sum().item<double>(), 100000);
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 2) << "nothing left behind";
}

TEST(Checkpoint, KeepsSoManyOlderOnesOfItsSeries) {
  const TemporaryFolder folder;
  int step = 0;
  Checkpoint checkpoint;
  checkpoint.add("step", step);
  EXPECT_EQ(Checkpoint::latest(folder / "no such folder"), std::nullopt);
  checkpoint.save(folder / "best.ckpt");
  write_file(folder / "step-1.txt", "somebody else's");
  for (step = 8; step <= 11; ++step) {
    checkpoint.save(folder / ("step-" + std::to_string(step) + ".ckpt"), nullptr, {.keep = 1});
    EXPECT_EQ(Checkpoint::latest(folder / ""), folder / ("step-" + std::to_string(step) + ".ckpt"));
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"best.ckpt", "step-1.txt", "step-10.ckpt", "step-11.ckpt"}));
  checkpoint.save(folder / "best.ckpt");  // over itself: the newest now
  EXPECT_EQ(Checkpoint::latest(folder / ""), folder / "best.ckpt");
}

TEST(Checkpoint, AKilledWriterLeavesTheLastOneWhole) {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  std::int64_t reached = 0;
  for (int round = 0; round < 50; ++round) {
    // One process goes on saving, now under one name, now under many, until it is killed.
    std::array<int, 2> started{};
    ASSERT_EQ(::pipe(started.data()), 0);
    Process writer([&] {
      torch::set_num_threads(1);
      std::int64_t step = reached;
      auto tensor = torch::full({20000}, step);
      Checkpoint checkpoint;
      checkpoint.add("step", step);
      checkpoint.add("tensor", tensor);
      for (;;) {
        tensor.fill_(++step);
        const auto name = round % 2 == 0 ? "step-" + std::to_string(step) : "last";
        checkpoint.save(folder / name, nullptr, {.keep = 1});
        if (::write(started[1], "x", 1) != 1) return 1;
      }
    });
    char first = 0;
    ASSERT_EQ(::read(started[0], &first, 1), 1);
    // At any moment of a save, which takes one to ten milliseconds: a random time, which nothing depends on.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 10000);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    writer.signal(SIGKILL);
    EXPECT_EQ(writer.wait(), 128 + SIGKILL);
    ::close(started[0]);
    ::close(started[1]);

    const auto latest = Checkpoint::latest(folder / "");
    ASSERT_TRUE(latest.has_value());
    // In a process of its own: this one forks again, and must not have computed.
    std::array<int, 2> answer{};
    ASSERT_EQ(::pipe(answer.data()), 0);
    Process reader([&] {
      torch::set_num_threads(1);
      std::int64_t step = 0;
      auto tensor = torch::zeros({20000}, torch::kLong);
      Checkpoint checkpoint;
      checkpoint.add("step", step);
      checkpoint.add("tensor", tensor);
      checkpoint.load(*latest);
      EXPECT_TRUE(tensor.eq(step).all().item<bool>());
      return ::write(answer[1], &step, sizeof step) == sizeof step ? 0 : 1;
    });
    EXPECT_EQ(reader.wait(), 0);
    std::int64_t step = 0;
    ASSERT_EQ(::read(answer[0], &step, sizeof step), static_cast<ssize_t>(sizeof step));
    ::close(answer[0]);
    ::close(answer[1]);
    EXPECT_GT(step, reached) << "what was saved before is not lost";
    reached = step;
  }
  for (const auto& entry : fs::directory_iterator(folder / "")) {
    EXPECT_TRUE(entry.path().extension() != ".partial" || entry.path().stem() == "last") << entry.path();
  }
}

}  // namespace
}  // namespace cohort::test
