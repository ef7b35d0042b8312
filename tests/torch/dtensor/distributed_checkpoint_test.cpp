// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints of distributed tensors: each rank writes its parts, and any other mesh, or a process without one, loads
// them, with the same bits.
#include <ATen/ATen.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/parallelize.h>
#include <cohort/torch/zero_optimizer.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "support/temporary.h"
#include "torch/dtensor/laid_out.h"
#include "torch/optim/state_key.h"
#include "torch/state/checkpoint_directory.h"
#include "torch/state/checkpoint_file.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;
using Sizes = std::vector<std::int64_t>;

constexpr CheckpointSaveOptions sharded{.sharded = true};

std::string bits_of(const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  return {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
}
at::Tensor local_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor;
}

/// Sizes that no mesh divides, fewer rows than ranks, nothing at all, and values whose bits an operation may change.
std::vector<at::Tensor> tensors_of_all_kinds() {
  auto special = at::linspace(-3, 3, 35, at::kFloat).view({7, 5});
  special[0][0] = std::numeric_limits<float>::quiet_NaN();
  special[6][4] = -0.0F;
  special[3][2] = std::numeric_limits<float>::denorm_min();
  return {special,
          at::arange(13, at::kDouble).div(7),
          at::arange(2, at::kLong),
          at::scalar_tensor(-2.5, at::kDouble),
          at::arange(48, at::kFloat).view({4, 6, 2}).sin().to(at::kBFloat16),
          at::arange(24).view({3, 8}).remainder(3).eq(0),
          at::view_as_complex(at::arange(40, at::kFloat).cos().view({5, 4, 2})),
          at::empty({0, 3}, at::kInt),
          at::arange(96, at::kShort).view({16, 6}).t()};
}

/// A way to lay out all of them; an empty mesh stands for plain tensors in one process.
struct Setting {
  Sizes mesh;
  unsigned seed;

  int ranks() const { return static_cast<int>(std::accumulate(mesh.begin(), mesh.end(), 1LL, std::multiplies<>())); }
  Placements placements_of(const at::Tensor& tensor, std::size_t number) const {
    std::mt19937 random(seed * 100 + static_cast<unsigned>(number));
    Placements all;
    for (std::size_t dim = 0; dim < mesh.size(); ++dim) {
      const auto choices = test::placements_of(tensor.dim(), false);
      all.push_back(choices[random() % choices.size()]);
    }
    // Sharded on the last mesh dimension first, and then on the one before.
    if (mesh.size() > 1 && all[0].is_shard() && all[0] == all[1]) all[0] = StridedShard(all[0].dim(), mesh[1]);
    return all;
  }
  friend std::ostream& operator<<(std::ostream& out, const Setting& setting) {
    for (const auto size : setting.mesh) out << size << "x";
    return out << " " << setting.seed;
  }
};

void as_ranks_of(const Setting& setting, const GroupBody& body) {
  if (setting.mesh.empty()) return body(nullptr);
  with_torch_threads(setting.ranks(), body);
}

std::vector<at::Tensor> lay_out(const std::vector<at::Tensor>& dense, const Setting& setting,
                                const ProcessGroupPtr& group) {
  if (group == nullptr) {
    std::vector<at::Tensor> copies;
    for (const auto& each : dense) copies.push_back(each.clone());
    return copies;
  }
  const auto mesh = init_device_mesh("cpu", setting.mesh, {}, {.process_group = group});
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    all.push_back(
        distribute_tensor(dense[i], mesh, setting.placements_of(dense[i], i), {.src_data_rank = std::nullopt}));
  }
  return all;
}

Checkpoint checkpoint_of(const std::vector<at::Tensor>& all) {
  Checkpoint checkpoint({.random_state = false});
  for (std::size_t i = 0; i < all.size(); ++i) checkpoint.add("t" + std::to_string(i), all[i]);
  return checkpoint;
}

std::vector<at::Tensor> zeros_as(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> zeros;
  for (const auto& each : all) zeros.push_back(at::zeros_like(each));
  return zeros;
}

void expect_same_bits(const std::vector<at::Tensor>& all, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(bits_of(local_of(all[i])), bits_of(local_of(expected[i]))) << "tensor " << i;
  }
}

/// Each setting loads what the one before it saved.
void go_through(const std::vector<Setting>& settings,
                const std::function<void(const Setting&, const GroupBody&)>& run) {
  const TemporaryFolder folder;
  const auto dense = tensors_of_all_kinds();
  for (std::size_t step = 0; step < settings.size(); ++step) {
    const auto& setting = settings[step];
    const auto before = folder / ("step-" + std::to_string(step - 1));
    const auto path = folder / ("step-" + std::to_string(step));
    run(setting, [&](const ProcessGroupPtr& group) {
      const auto expected = lay_out(dense, setting, group);
      const auto own = step == 0 ? expected : zeros_as(expected);
      auto checkpoint = checkpoint_of(own);
      if (step > 0) checkpoint.load(before, group);
      expect_same_bits(own, expected);
      checkpoint.save(path, group, sharded);
    });
    ASSERT_FALSE(testing::Test::HasFailure()) << setting << ", step " << step;
  }
}

struct Chain {
  const char* name;
  std::vector<Setting> settings;
  friend std::ostream& operator<<(std::ostream& out, const Chain& chain) { return out << chain.name; }
};
class DistributedCheckpoint : public testing::TestWithParam<Chain> {};

TEST_P(DistributedCheckpoint, BitsStayTheSameFromMeshToMesh) {
  go_through(GetParam().settings, as_ranks_of);
}

INSTANTIATE_TEST_SUITE_P(
    Chains, DistributedCheckpoint,
    testing::Values(Chain{"TwoByTwoToFourByOneToOneProcessAndBack", {{{2, 2}, 1}, {{4, 1}, 2}, {{}, 3}, {{2, 2}, 4}}},
                    Chain{"EveryNumberOfRanks", {{{1}, 5}, {{2}, 6}, {{3}, 7}, {{4}, 8}, {{1}, 9}}},
                    Chain{"OtherPlacementsOnTheSameMesh",
                          {{{2, 2}, 10}, {{2, 2}, 11}, {{2, 2}, 12}, {{2, 2}, 13}, {{2, 2}, 14}}},
                    Chain{"MeshesOfThree", {{{1, 3}, 15}, {{3, 1}, 16}, {{2, 1, 2}, 17}, {{}, 18}}}),
    [](const auto& chain) { return std::string(chain.param.name); });

TEST(DistributedCheckpointProcesses, LoadWhatOthersSaved) {
  const TemporaryFolder folder;
  const Setting before{{2, 2}, 20};
  const Setting after{{4, 1}, 21};
  for (const auto& setting : {before, after}) {
    with_torch_processes(4, [&](const ProcessGroupPtr& group) {
      const auto expected = lay_out(tensors_of_all_kinds(), setting, group);
      const bool is_first = setting.seed == before.seed;
      const auto own = is_first ? expected : zeros_as(expected);
      auto checkpoint = checkpoint_of(own);
      if (!is_first) checkpoint.load(folder / "saved", group);
      expect_same_bits(own, expected);
      checkpoint.save(folder / "saved", group, sharded);
    });
  }
}

/// The bytes of the tensors in each file.
std::vector<std::uint64_t> bytes_in_files(const std::string& path) {
  std::vector<std::uint64_t> bytes;
  for (const auto& file : files_of_folder(path)) {
    bytes.push_back(0);
    for (const auto& tensor : read_header(file).tensors) {
      if (!tensor.name.starts_with("cohort")) bytes.back() += tensor.end - tensor.begin;
    }
  }
  return bytes;
}

TEST(DistributedCheckpoints, EveryElementIsWrittenOnceAndTheRanksWriteAboutTheSame) {
  const TemporaryFolder folder;
  const auto dense = at::arange(64 * 64, at::kFloat).view({64, 64});
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    std::vector<at::Tensor> all;
    for (const auto& placements : {Placements{Shard(0), Shard(1)}, Placements{Replicate(), Shard(0)},
                                   Placements{Shard(1), Replicate()}, Placements{Replicate(), Replicate()}}) {
      for (int i = 0; i < 4; ++i) all.push_back(laid_out(dense, mesh, placements));
    }
    // On a slice, the other row of the mesh has the same parts, and the tensor does not know of it.
    for (int i = 0; i < 4; ++i) all.push_back(laid_out(dense, mesh["tp"], {Shard(0)}));
    checkpoint_of(all).save(folder / "saved", group, sharded);
  });
  const auto bytes = bytes_in_files(folder / "saved");
  const auto total = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  EXPECT_EQ(total, 20 * dense.nbytes());
  for (const auto each : bytes) EXPECT_EQ(each, total / 4);
}

/// What this thread has read from files.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string key;
  std::uint64_t bytes = 0;
  file >> key >> bytes;
  return key == "rchar:" ? bytes : 0;
}

TEST(DistributedCheckpoints, ARankReadsTheFilesThatHaveItsParts) {
  const TemporaryFolder folder;
  constexpr std::uint64_t part = std::uint64_t{4} << 20U;
  const auto run = [&](bool saves) {
    with_torch_threads(4, [&](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {4}, {}, {.process_group = group});
      const auto tensor = dtensor::full({4, part}, 3, mesh, {Shard(0)}, at::kByte);
      auto checkpoint = checkpoint_of({tensor});
      if (saves) return checkpoint.save(folder / "saved", group, sharded);
      tensor.zero_();
      const auto before = bytes_read();
      checkpoint.load(folder / "saved", group);
      const auto bytes = bytes_read() - before;
      EXPECT_GE(bytes, 2 * part) << "once to verify its file and once to take from it";
      EXPECT_LT(bytes, 2 * part + part / 2);
      EXPECT_TRUE(tensor.to_local().eq(3).all().item<bool>());
    });
  };
  run(true);
  run(false);
}

// --- models and optimizers ------------------------------------------------------------------------------------------

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
struct Run {
  std::shared_ptr<Mlp> net = std::make_shared<Mlp>();
  std::optional<DeviceMesh> mesh{};
  std::unique_ptr<Optimizer> optimizer{};
  std::int64_t step = 0;

  Run(const ProcessGroupPtr& group, const Sizes& shape, bool replicated, const Options& options) {
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
  using TheRun = Run<Optimizer, Options>;
  const TemporaryFolder folder;
  std::map<std::string, std::string> saved;
  std::vector<double> losses;
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    TheRun run(group, {2, 2}, false, options);
    for (int i = 0; i < 3; ++i) run.train();
    run.net->named_buffers()["count"].fill_(7);
    run.checkpoint().save(folder / "2x2", group, sharded);
    const auto bits = run.bits();
    if (group->rank() == 0) saved = bits;
  });
  ASSERT_EQ(saved.size(), (std::is_same_v<Optimizer, torch::optim::Adam> ? 4 + 1 + 4 * 4 : 4 + 1 + 4));

  const auto load = [&](const ProcessGroupPtr& group, const Sizes& shape, bool replicated, const std::string& from,
                        const std::string& to) {
    TheRun run(group, shape, replicated, options);
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

/// A module of which "tp" has the parts and "dp" the replicas, wrapped by DistributedDataParallel: its parameters are this
/// rank's parts then. `make(parameters, group of dp)` returns the optimizer.
template <class Make>
void expect_wrapped_run_to_move(Make&& make) {
  using Alone = Run<torch::optim::Adam, torch::optim::AdamOptions>;
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
    Run<torch::optim::Adam, torch::optim::AdamOptions> unwrapped(group, {2, 2}, false,
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
    return std::make_unique<ZeroOptimizer<torch::optim::Adam>>(parameters,
                                                               torch::optim::AdamOptions(0.01).amsgrad(true), dp);
  });
}

TEST(DistributedCheckpoints, FilesOfOneProcessGoIntoDistributedTensors) {
  const TemporaryFolder folder;
  const auto dense = tensors_of_all_kinds();
  checkpoint_of(dense).save(folder / "file");
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto expected = lay_out(dense, {{2, 2}, 30}, group);
    const auto own = zeros_as(expected);
    for (const bool each_reads : {false, true}) {
      auto checkpoint = checkpoint_of(own);
      checkpoint.load(folder / "file", group, {.all_ranks_read = each_reads});
      expect_same_bits(own, expected);
      for (const auto& each : own) each.zero_();
    }
    // What rank 0 holds as a whole can be saved in one file.
    const auto mesh = init_device_mesh("cpu", {2, 2}, {}, {.process_group = group});
    auto replicated = laid_out(dense[1], mesh, {Replicate(), Replicate()});
    checkpoint_of({replicated}).save(folder / "replicated", group);
    const auto split = laid_out(dense[1], mesh, {Replicate(), Shard(0)});
    EXPECT_ERROR(CheckpointError, checkpoint_of({split}).save(folder / "split", group), "save with {.sharded = true}");
  });
  const auto whole = at::zeros_like(dense[1]);
  checkpoint_of({whole}).load(folder / "replicated");
  EXPECT_EQ(bits_of(whole), bits_of(dense[1]));
}

TEST(DistributedCheckpoints, LoadingIsAChangeInPlaceToAutograd) {
  const TemporaryFolder folder;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto weight = dtensor::ones({4}, mesh, {Shard(0)}, at::TensorOptions().requires_grad(true));
    auto checkpoint = checkpoint_of({weight});
    checkpoint.save(folder / "saved", group, sharded);
    const auto loss = (weight * weight).sum();
    const auto before = weight._version();
    const auto* const part = DTensor(weight).to_local().data_ptr();
    checkpoint.load(folder / "saved", group);
    EXPECT_GT(weight._version(), before);
    EXPECT_EQ(DTensor(weight).to_local().data_ptr(), part);
    EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
    EXPECT_THROW(loss.backward(), c10::Error) << "modified by an inplace operation";
    (weight * weight).sum().backward();
    EXPECT_TRUE(DTensor(weight.grad()).to_local().eq(2).all().item<bool>());
  });
}

TEST(DistributedCheckpoints, ASecretSignsEveryRanksFile) {
  const TemporaryFolder folder;
  const auto secret = Secret::generate();
  const auto dense = at::arange(20, at::kFloat).view({5, 4});
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto rows = laid_out(dense, mesh, {Shard(0)});
    Checkpoint signs({.random_state = false, .secret = secret});
    signs.add("t0", rows);
    signs.save(folder / "saved", group, sharded);
    const auto columns = at::zeros_like(laid_out(dense, mesh, {Shard(1)}));
    Checkpoint loads({.random_state = false, .secret = secret});
    loads.add("t0", columns);
    loads.load(folder / "saved", group);
    EXPECT_TRUE(DTensor(columns).full_tensor().equal(dense));
    Checkpoint other({.random_state = false, .secret = Secret::generate()});
    other.add("t0", columns);
    EXPECT_ERROR(CheckpointError, other.load(folder / "saved", group), "is not signed with this secret");
  });
}

// --- what goes wrong ------------------------------------------------------------------------------------------------

TEST(DistributedCheckpoints, WhatCannotBeSavedIsNamedOnAllRanksAndTheLastOneStays) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    const auto good = laid_out(at::arange(8, at::kFloat), mesh, {Replicate(), Shard(0)});
    checkpoint_of({good}).save(path, group, sharded);
    const auto refused = [&](const std::vector<at::Tensor>& all, const std::string& why) {
      EXPECT_ERROR(CheckpointError, checkpoint_of(all).save(path, group, sharded), why);
    };
    refused({good, laid_out(at::ones({4}), mesh, {Shard(0), Partial()})}, "\"t1\" is [S(0), P(sum)]");
    refused({laid_out(at::ones({4}), mesh, {Partial("max"), Replicate()})}, "redistribute() it");
    // Ranks that save different things.
    const auto more = laid_out(at::ones({4}), mesh, {Shard(0), Replicate()});
    refused(group->rank() == 2 ? std::vector<at::Tensor>{good} : std::vector<at::Tensor>{good, more},
            "\"t1\" is a distributed tensor on rank 0, and rank 2 has none of this name");
    refused({group->rank() == 3 ? laid_out(at::ones({5}), mesh, {Shard(0), Replicate()}) : more},
            "\"t0\" is Float of shape [4] on rank 0, and Float of shape [5] on rank 3");
    refused({mesh.local_rank("dp") == 0 ? laid_out(at::ones({4, 4}), mesh["tp"], {Shard(0)})
                                        : laid_out(at::ones({4, 4}), mesh["tp"], {Shard(1)})},
            "\"t0\": its parts overlap");
    const auto uneven = DTensor::from_local(at::ones({mesh.local_rank("tp") == 0 ? 3 : 1}), mesh["tp"], {Shard(0)});
    refused({uneven}, "\"t0\" is Float of shape [6] on rank 0, and Float of shape [2] on rank 1");
    Checkpoint per_rank;
    per_rank.add_per_rank("mine", at::Tensor(good));
    EXPECT_ERROR(CheckpointError, per_rank.save(path, group, sharded), "use add(), not add_per_rank()");
    // A group that is not all of the mesh.
    const auto half = "half-" + std::to_string(mesh.local_rank("tp"));
    EXPECT_ERROR(CheckpointError, checkpoint_of({good}).save(folder / half, mesh.group("dp"), sharded),
                 "parts of it are missing: 4 of 8 elements are there; all ranks of its mesh must save it");

    const auto own = at::zeros_like(good);
    checkpoint_of({own}).load(path, group);
    EXPECT_EQ(bits_of(local_of(own)), bits_of(local_of(good)));
  });
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 1) << "nothing left behind";
}

TEST(DistributedCheckpoints, WhatDoesNotFitIsNamedAndNothingChanges) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto saved = std::vector<at::Tensor>{laid_out(at::arange(6, at::kFloat), mesh, {Shard(0)}),
                                               laid_out(at::arange(5, at::kFloat), mesh, {Shard(0)})};
    checkpoint_of(saved).save(path, group, sharded);
    const auto good = laid_out(at::ones({6}), mesh, {Shard(0)});
    const auto refused = [&](const at::Tensor& second, const std::string& why) {
      EXPECT_ERROR(CheckpointError, checkpoint_of({good, second}).load(path, group), why);
      EXPECT_TRUE(good.to_local().eq(1).all().item<bool>());
    };
    refused(laid_out(at::ones({4}), mesh, {Shard(0)}), "has shape [5] there and [4] here");
    refused(at::ones({4}), "has shape [5] there and [4] here");
    refused(laid_out(at::ones({5}), mesh, {Partial()}), "the tensor here is [P(sum)]");
    const auto one_fails = group->rank() == 1 ? at::ones({7}) : at::ones({5});
    refused(one_fails, "rank 1 failed");
    const auto other_type = laid_out(at::zeros({5}, at::kDouble), mesh, {Replicate()});
    checkpoint_of({good, other_type}).load(path, group);
    EXPECT_TRUE(other_type.to_local().equal(at::arange(5, at::kDouble))) << "dtypes are converted";
  });
}

TEST(DistributedCheckpoints, DamageInAnyRanksFileIsAnErrorForAll) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  const auto run = [&](const std::function<void(Checkpoint&, const ProcessGroupPtr&, const DTensor&)>& body) {
    with_torch_threads(4, [&](const ProcessGroupPtr& group) {
      const auto mesh = init_device_mesh("cpu", {4}, {}, {.process_group = group});
      const auto tensor = laid_out(at::ones({8}), mesh, {Shard(0)});
      auto checkpoint = checkpoint_of({tensor});
      body(checkpoint, group, tensor);
    });
  };
  run([&](auto& checkpoint, const auto& group, const auto&) { checkpoint.save(path, group, sharded); });
  for (const auto& file : files_of_folder(path)) {
    const auto bytes = CheckpointContent::read_file(file, nullptr);
    const auto refused = [&](const std::string& content, const std::string& why) {
      std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
      run([&](auto& checkpoint, const auto& group, const auto& tensor) {
        tensor.fill_(5);
        EXPECT_ERROR(CheckpointError, checkpoint.load(path, group), fs::path(file).filename().string() + ": " + why);
        EXPECT_TRUE(tensor.to_local().eq(5).all().template item<bool>());
      });
      const auto alone = at::zeros({8});
      EXPECT_ERROR(CheckpointError, checkpoint_of({alone}).load(path), why);
      EXPECT_EQ(Checkpoint::latest(folder / ""), std::nullopt);
    };
    auto flipped = bytes;
    flipped[bytes.size() - 10] = static_cast<char>(flipped[bytes.size() - 10] ^ 1);  // in the part
    refused(flipped, "is damaged: its checksum differs");
    refused(bytes.substr(0, bytes.size() - 1), "is torn");
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
}

TEST(DistributedCheckpointProcesses, ARankThatCannotWriteIsAnErrorForAllAndLosesNothing) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  with_torch_processes(3, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {3}, {}, {.process_group = group});
    const auto tensor = dtensor::ones({300000}, mesh, {Shard(0)});
    auto checkpoint = checkpoint_of({tensor});
    checkpoint.save(path, group, sharded);
    tensor.fill_(2);
    if (group->rank() == 2) {  // its disk is full after 100 kB
      const rlimit limit{100000, RLIM_INFINITY};
      std::signal(SIGXFSZ, SIG_IGN);
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    EXPECT_ERROR(CheckpointError, checkpoint.save(path, group, sharded), "writing failed: File too large");
    EXPECT_ERROR(CheckpointError, checkpoint.save(path, group, sharded), "rank 2");
    checkpoint.load(path, group);
    EXPECT_TRUE(tensor.to_local().eq(1).all().item<bool>());
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 1) << "nothing left behind";
}

/// Dies in the middle of a save.
struct Dying {
  bool now = false;
  StateDict state_dict() const {
    if (now) ::raise(SIGKILL);
    return {};
  }
  void load_state_dict(const StateDict& /*state*/) {}
};

TEST(DistributedCheckpointProcesses, ARankThatDiesLeavesTheLastOneWhole) {
  const TemporaryFolder folder;
  const auto path = folder / "saved";
  const ProcessStore store;
  std::vector<Process> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto group = join_processes(store, rank, 3);
      const auto mesh = init_device_mesh("cpu", {3}, {}, {.process_group = group});
      const auto tensor = dtensor::ones({30}, mesh, {Shard(0)});
      Dying dying;
      auto checkpoint = checkpoint_of({tensor});
      checkpoint.add("dying", dying);
      checkpoint.save(path, group, sharded);
      tensor.fill_(2);
      dying.now = rank == 1;
      EXPECT_ERROR(DistributedError, checkpoint.save(path, group, sharded), "rank 1");
      return 0;
    });
  }
  EXPECT_EQ(ranks[1].wait(), 128 + SIGKILL);
  EXPECT_EQ(ranks[0].wait(), 0);
  EXPECT_EQ(ranks[2].wait(), 0);
  EXPECT_EQ(Checkpoint::latest(folder / ""), path);
  Process reader([&] {
    at::set_num_threads(1);
    const auto tensor = at::zeros({30});
    Checkpoint checkpoint({.random_state = false});
    checkpoint.add("t0", tensor);
    checkpoint.load(path);
    return tensor.eq(1).all().item<bool>() ? 0 : 1;
  });
  EXPECT_EQ(reader.wait(), 0);
}

}  // namespace
}  // namespace cohort::test
