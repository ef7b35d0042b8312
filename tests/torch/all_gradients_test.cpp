// SPDX-License-Identifier: BSD-3-Clause
//
// What is decided by all gradients of a model together, clipping and loss scaling, where the ranks hold parts of them:
// against one process that has the whole model. On every kind of ranks, since each decision is a reduction.
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/parallelize.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/bits.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

class AllGradients : public ::testing::TestWithParam<Ranks> {
 protected:
  /// Four ranks, two times two.
  static void run(const std::function<void(const ProcessGroupPtr&, const DeviceMesh&)>& body) {
    GetParam().run([&](const ProcessGroupPtr& group) {
      at::set_num_threads(1);
      body(group, init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group}));
    });
  }
};

/// The same on all ranks.
at::Tensor waves(at::IntArrayRef sizes, double first) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kDouble) + first).view(sizes);
}

void expect_same_bits_on_all_ranks(const ProcessGroupPtr& group, double number) {
  const auto mine = bits_of(torch::tensor(number, torch::kDouble));
  for (const auto& each : group->all_gather_bytes(mine)) EXPECT_EQ(each, mine) << "rank " << group->rank();
}

/// Counts the group's reductions. Anything else counts as many: nothing is to be gathered.
class Reductions {
 public:
  explicit Reductions(const ProcessGroupPtr& group) {
    group->add_pre_hook(
        [count = count_](const HookEvent& event) { *count += event.op == OpType::all_reduce ? 1 : 1000; });
  }
  int take() { return count_->exchange(0); }

 private:
  std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
};

/// Parameters that lie in every way, with their gradients, and the same gradients as one process has them.
struct Mixture {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;

  explicit Mixture(const DeviceMesh& mesh, const DeviceMesh& line) {
    const auto tp = mesh["tp"];
    add({3, 2}, nullptr, {});
    add({5, 2}, &tp, {Shard(0)});
    add({4}, &tp, {Replicate()});
    add({3, 3}, &mesh, {Shard(0), Replicate()});
    add({4, 6}, &mesh, {Shard(1), Shard(0)});
    add({2, 3}, &mesh, {Shard(0), Shard(0)});  // two ranks have nothing
    add({2, 2}, &mesh, {Replicate(), Replicate()});
    add({7}, &line, {Shard(0)});
    add({3, 1}, &tp, {Shard(1)});
    parameters.push_back(placed(waves({6}, 0), &tp, {Shard(0)}).requires_grad_());  // has no gradient
    parameters.push_back(parameters[1]);                                            // a tied weight counts once
  }
  static at::Tensor placed(const at::Tensor& tensor, const DeviceMesh* mesh, const Placements& placements) {
    if (mesh == nullptr) return tensor.clone();
    return distribute_tensor(tensor, *mesh, placements, {.src_data_rank = std::nullopt});
  }
  void add(at::IntArrayRef sizes, const DeviceMesh* mesh, const Placements& placements) {
    const auto number = static_cast<double>(gradients.size());
    gradients.push_back(waves(sizes, 10 * number) * (number + 1));
    parameters.push_back(placed(waves(sizes, number), mesh, placements).requires_grad_());
    parameters.back().mutable_grad() = placed(gradients.back(), mesh, placements);
  }
  at::Tensor flat() const {
    std::vector<at::Tensor> all;
    for (const auto& each : gradients) all.push_back(each.reshape({-1}));
    return torch::cat(all);
  }
};

at::Tensor whole(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? DTensor(tensor).full_tensor() : tensor;
}

TEST_P(AllGradients, HaveOneNormWhereverTheyLie) {
  run([](const ProcessGroupPtr& group, const DeviceMesh& mesh) {
    const auto line = mesh.flatten();
    std::vector<Reductions> reductions;
    for (const auto& each : {mesh.group("dp"), mesh.group("tp"), line.group()}) reductions.emplace_back(each);
    for (const double p : {1.0, 2.0, 2.5, inf}) {
      for (const double max_norm : {0.7, 1000.0}) {
        Mixture mixture(mesh, line);
        const auto expected = at::linalg_vector_norm(mixture.flat(), p).item<double>();
        for (auto& each : reductions) each.take();
        const auto norm = clip_grad_norm_(mixture.parameters, max_norm, {.norm_type = p});
        for (auto& each : reductions) EXPECT_EQ(each.take(), 1) << "for each group";
        EXPECT_FALSE(is_dtensor(norm));
        EXPECT_NEAR(norm.item<double>(), expected, 1e-13 * expected);
        expect_same_bits_on_all_ranks(group, norm.item<double>());
        const auto factor = std::min(1.0, max_norm / (expected + 1e-6));
        for (std::size_t i = 0; i < mixture.gradients.size(); ++i) {
          const auto& gradient = mixture.parameters[i].grad();
          EXPECT_TRUE(at::allclose(whole(gradient), mixture.gradients[i] * factor, 1e-12, 1e-15)) << i;
        }
      }
    }
  });
}

TEST_P(AllGradients, ThatAreNotFiniteAreSeenByAllRanks) {
  run([](const ProcessGroupPtr& group, const DeviceMesh& mesh) {
    const auto line = mesh.flatten();
    for (const double bad : {inf, std::numeric_limits<double>::quiet_NaN()}) {
      for (const double p : {2.0, inf}) {
        Mixture mixture(mesh, line);
        const auto local = DTensor(mixture.parameters[7].grad()).to_local();
        if (group->rank() == 2) local.fill_(bad);
        const auto before = whole(mixture.parameters[3].grad()).clone();
        EXPECT_ERROR(Error, clip_grad_norm_(mixture.parameters, 1, {.norm_type = p, .error_if_nonfinite = true}),
                     "nothing was scaled");
        EXPECT_TRUE(before.equal(whole(mixture.parameters[3].grad())));
        const auto norm = clip_grad_norm_(mixture.parameters, 1, {.norm_type = p}).item<double>();
        EXPECT_FALSE(std::isfinite(norm));
      }
    }
  });
}

/// Layers of libtorch for tensor parallelism, of which ranks hold uneven parts.
torch::nn::Sequential make_layers() {
  torch::nn::Sequential net(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})), torch::nn::Linear(6, 9),
                            torch::nn::Tanh(), torch::nn::Linear(9, 4));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  double first = 0;
  for (const auto& each : net->parameters()) each.copy_(waves(each.sizes(), first++) * 0.4);
  return net;
}

/// A model beside its parallel form, which is trained with the same data on all ranks.
class Pair {
 public:
  explicit Pair(const DeviceMesh& mesh) : mesh_(mesh) {
    parallelize_module(*net_, mesh["tp"], {{"1", ColwiseParallel()}, {"3", RowwiseParallel()}});
    ddp_.emplace(net_, DdpOptions{.device_mesh = mesh["dp"]});
  }

  DistributedDataParallel<torch::nn::SequentialImpl>& ddp() { return *ddp_; }
  torch::nn::SequentialImpl& dense() { return *dense_; }

  /// `factor` is what a loss scaler multiplies the loss by.
  void backward(int step, double factor = 1) {
    const auto x = waves({8, 6}, step);
    const auto y = waves({8, 4}, step + 100);
    dense_->zero_grad();
    ((dense_->forward(x) - y).pow(2).mean() * 5).backward();
    const auto mine = [&](const at::Tensor& all) -> at::Tensor {
      const auto rows = all.narrow(0, 4 * mesh_.local_rank("dp"), 4).contiguous();
      return distribute_tensor(rows, mesh_["tp"], {}, {.src_data_rank = std::nullopt});
    };
    ddp_->zero_grad();
    ((ddp_->forward(mine(x)) - mine(y)).pow(2).mean() * (5 * factor)).backward();
  }
  /// Ends the wrapping, after which the module has its distributed parameters.
  void expect_equal() {
    ddp_.reset();
    for (const auto& item : dense_->named_parameters()) {
      const DTensor trained(net_->named_parameters()[item.key()]);
      EXPECT_TRUE(at::allclose(trained.full_tensor(), item.value(), 1e-11, 1e-13)) << item.key();
      if (!trained.placements()[0].is_replicate()) continue;
      auto sum = trained.to_local().detach().clone();
      mesh_.group("tp")->all_reduce(sum);
      EXPECT_TRUE(sum.equal(trained.to_local() * 2)) << item.key() << " drifts apart";
    }
  }

 private:
  DeviceMesh mesh_;
  torch::nn::Sequential net_ = make_layers();
  torch::nn::Sequential dense_ = make_layers();
  std::optional<DistributedDataParallel<torch::nn::SequentialImpl>> ddp_;
};

TEST_P(AllGradients, OfTensorParallelModulesUnderDdpAreClippedTogether) {
  run([](const ProcessGroupPtr& group, const DeviceMesh& mesh) {
    for (const double p : {2.0, 3.0, inf}) {
      Pair pair(mesh);
      torch::optim::SGD optimizer(pair.ddp().parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
      torch::optim::SGD reference(pair.dense().parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
      for (int step = 0; step < 5; ++step) {
        pair.backward(step);
        const auto expected = torch::nn::utils::clip_grad_norm_(pair.dense().parameters(), 0.05, p);
        // The ranks of the tensor-parallel group have parameters in common and parts of others: it changes nothing.
        const auto own_group = step % 2 == 0 ? nullptr : mesh.group("tp");
        const auto norm =
            clip_grad_norm_(pair.ddp().parameters(), 0.05, {.norm_type = p, .process_group = own_group}).item<double>();
        EXPECT_NEAR(norm, expected, 1e-11 * expected);
        EXPECT_GT(norm, 0.05) << "otherwise nothing is clipped";
        expect_same_bits_on_all_ranks(group, norm);
        optimizer.step();
        reference.step();
      }
      pair.expect_equal();
    }
  });
}

TEST_P(AllGradients, OfTensorParallelModulesUnderDdpAreScaledAndSkippedTogether) {
  run([](const ProcessGroupPtr& group, const DeviceMesh& mesh) {
    Pair pair(mesh);
    torch::optim::SGD optimizer(pair.ddp().parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
    torch::optim::SGD reference(pair.dense().parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
    GradScaler scaler({.init_scale = 8, .growth_interval = 2});
    for (int step = 0; step < 6; ++step) {
      pair.backward(step, scaler.scale());
      // An overflow of a part that one tensor-parallel rank has: a weight's columns, and what all have a copy of.
      const auto overflown = pair.ddp().parameters()[step == 2 ? 2 : 0].grad();
      const bool is_bad = step == 2 || step == 3;
      if (is_bad && mesh.local_rank("tp") == 1) overflown.flatten()[1].fill_(inf);
      if (step == 4) scaler.unscale_(optimizer);
      const auto scale = scaler.scale();
      EXPECT_EQ(scaler.step(optimizer), !is_bad);
      if (!is_bad) reference.step();
      scaler.update();
      if (is_bad) {
        EXPECT_EQ(scaler.scale(), scale / 2);
      }
      expect_same_bits_on_all_ranks(group, scaler.scale());
    }
    pair.expect_equal();
  });
}

TEST_P(AllGradients, AreUnscaledWhereverTheyLie) {
  run([](const ProcessGroupPtr& group, const DeviceMesh& mesh) {
    const auto line = mesh.flatten();
    Mixture mixture(mesh, line);
    mixture.parameters.pop_back();  // optimizers take each once
    torch::optim::SGD optimizer(mixture.parameters, 1.0);
    const auto before = whole(mixture.parameters[4]).detach().clone();
    GradScaler scaler({.init_scale = 4});
    {
      std::vector<Reductions> reductions;
      for (const auto& each : {mesh.group("dp"), mesh.group("tp"), line.group()}) reductions.emplace_back(each);
      EXPECT_TRUE(scaler.step(optimizer));
      for (auto& each : reductions) EXPECT_EQ(each.take(), 1) << "for each group";
    }
    scaler.update();
    EXPECT_TRUE(at::allclose(before - whole(mixture.parameters[4]).detach(), mixture.gradients[4] / 4, 1e-12, 1e-15));
    // Rank 3 alone sees it, and all leave the step out.
    if (group->rank() == 3) mixture.parameters[0].grad()[0][0] = inf;
    EXPECT_FALSE(scaler.step(optimizer));
  });
}

TEST_P(AllGradients, ThatCannotBeKnownAreRefused) {
  run([](const ProcessGroupPtr& group, const DeviceMesh& mesh) {
    const DeviceMesh first("cpu", RankArray{0, 1}, {}, {.process_group = group});
    auto half = DTensor::from_local(torch::ones({2}, torch::kDouble), first, {Shard(0)}).detach().requires_grad_();
    half.mutable_grad() = half.detach();
    torch::optim::SGD optimizer({half}, 1.0);
    GradScaler scaler;
    if (group->rank() > 1) {
      EXPECT_ERROR(Error, clip_grad_norm_({half}, 1), "is not on DeviceMesh(cpu");
      EXPECT_ERROR(Error, scaler.step(optimizer), "GradScaler: rank " + std::to_string(group->rank()) + " is not on");
    } else {
      EXPECT_EQ(clip_grad_norm_({half}, 1).item<double>(), 2) << "of four ones";
      EXPECT_ERROR(ValueError, clip_grad_norm_({half}, 1, {.process_group = group}), "2 of the 4 ranks");
    }
    auto summed = distribute_tensor(torch::ones({2}), mesh["tp"]).requires_grad_();
    summed.mutable_grad() = DTensor::from_local(torch::ones({2}), mesh["tp"], {Partial()});
    EXPECT_ERROR(ValueError, clip_grad_norm_({summed}, 1), "lies as [P(sum)]");
  });
}

class GradientsOfOneRank : public AllGradients {};

/// Rank 2 is on one of two meshes, and cannot take part: ranks 0 and 1 would wait for it in the other's reduction. On mpi
/// they do, until the deadline: nobody can be told there.
TEST_P(GradientsOfOneRank, ThatItCannotKnowAreAnErrorOnItsPeersAtOnce) {
  run([](const ProcessGroupPtr& group, const DeviceMesh&) {
    const DeviceMesh three("cpu", RankArray{0, 1, 2}, {}, {.process_group = group});
    const DeviceMesh two("cpu", RankArray{0, 1}, {}, {.process_group = group});
    if (group->rank() == 3) return;
    std::vector<at::Tensor> parameters;
    for (const auto& mesh : {three, two}) {
      auto each = DTensor::from_local(torch::ones({2}), mesh, {Shard(0)}).detach().requires_grad_();
      each.mutable_grad() = each.detach();
      parameters.push_back(each);
    }
    if (group->rank() == 2) {
      EXPECT_ERROR(Error, clip_grad_norm_(parameters, 1), "rank 2 is not on DeviceMesh(cpu");
    } else {
      EXPECT_ERROR(DistributedError, clip_grad_norm_(parameters, 1), "rank 2 failed within clip_grad_norm_");
    }
  });
}

std::vector<Ranks> kinds() {
  auto all = on_backends({threads(4), processes(4)});
#ifdef COHORT_TEST_HAS_GLOO
  if (!is_launched()) {
    all.push_back({.are = Ranks::Are::processes, .size = 4, .backend = "gloo"});
    all.push_back({.are = Ranks::Are::processes, .size = 4, .backend = "hybrid", .hosts = 2});
  }
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(Torch, AllGradients, ::testing::ValuesIn(kinds()),
                         [](const auto& each) { return to_string(each.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllGradients);
INSTANTIATE_TEST_SUITE_P(Torch, GradientsOfOneRank, ::testing::ValuesIn(is_launched() ? std::vector<Ranks>() : kinds()),
                         [](const auto& each) { return to_string(each.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GradientsOfOneRank);

}  // namespace
}  // namespace cohort::test
