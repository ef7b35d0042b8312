// SPDX-License-Identifier: BSD-3-Clause
//
// Distributed tensors: how they are made, what they refuse, and training with them.
#include <ATen/ThreadLocalState.h>
#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/dtensor_rule.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "torch/dtensor/laid_out.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Sizes = std::vector<std::int64_t>;

void on_mesh(const Sizes& shape, const std::function<void(const DeviceMesh&)>& body) {
  int ranks = 1;
  for (const auto size : shape) ranks *= static_cast<int>(size);
  with_torch_threads(
      ranks, [&](const ProcessGroupPtr& group) { body(init_device_mesh("cpu", shape, {}, {.process_group = group})); });
}

at::Tensor counting(const Sizes& sizes) {
  std::int64_t elements = 1;
  for (const auto size : sizes) elements *= size;
  return torch::arange(elements, torch::kFloat).view(sizes);
}

TEST(DTensors, FromLocalInfersTheGlobalSizesAndSharesMemory) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto local = torch::ones({3, 4});
    const auto rows = DTensor::from_local(local, mesh, {Shard(0)});
    EXPECT_EQ(rows.sizes(), at::IntArrayRef({6, 4}));
    EXPECT_EQ(rows.strides(), at::IntArrayRef({4, 1}));
    EXPECT_EQ(DTensor::from_local(local, mesh, {Shard(-1)}).sizes(), at::IntArrayRef({3, 8}));
    EXPECT_EQ(DTensor::from_local(local, mesh, {Shard(-1)}).placements(), Placements{Shard(1)});
    EXPECT_EQ(DTensor::from_local(local, mesh).placements(), Placements{Replicate()});
    EXPECT_EQ(rows.to_local().data_ptr(), local.data_ptr());
    local.fill_(7);
    EXPECT_EQ(rows.full_tensor().sum().item<float>(), 7 * 24);
    const MeshScope scope(mesh);
    EXPECT_TRUE(DTensor::from_local(local).device_mesh() == mesh);
  });
}

TEST(DTensors, FromLocalRefuses) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto local = torch::ones({3, 4});
    EXPECT_ERROR(Error, DTensor::from_local(DTensor::from_local(local, mesh), mesh), "distributed already");
    EXPECT_ERROR(Error, DTensor::from_local(local, mesh, {Shard(0)}, {.sizes = Sizes{5, 4}}), "both");
    EXPECT_ERROR(ValueError, DTensor::from_local(local, mesh, {Shard(0), Replicate()}), "2 placements for a mesh of 1");
    EXPECT_ERROR(IndexError, DTensor::from_local(local, mesh, {Shard(2)}), "S(2)");
    EXPECT_ERROR(
        ValueError,
        DTensor::from_local(torch::ones({5, 4}), mesh, {Shard(0)}, {.sizes = Sizes{7, 4}, .strides = Sizes{4, 1}}),
        "has a part of sizes");
    EXPECT_ERROR(TypeError, DTensor(torch::ones({2})), "not distributed");
  });
}

TEST(DTensors, RunCheckComparesAndMakesReplicasEqual) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const auto rank = mesh.rank();
    const auto same = DTensor::from_local(torch::full({2}, rank), mesh, {Replicate(), Shard(0)}, {.run_check = true});
    // Column c has the values of its first row.
    EXPECT_TRUE(at::equal(same.full_tensor(), torch::tensor({0, 0, 1, 1})));
    // One rank differs, and all are told, also those of the other row.
    EXPECT_ERROR(
        ValueError,
        DTensor::from_local(torch::ones({2, rank == 3 ? 5 : 4}), mesh, {Shard(0), Replicate()}, {.run_check = true}),
        "the ranks' parts differ");
  });
}

TEST(DTensors, DistributeTensorTakesTheValuesOfOneRank) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const auto rank = mesh.rank();
    const auto mine = counting({4, 2}) + 100.0 * rank;
    const auto first = distribute_tensor(mine, mesh, {Shard(0)});
    EXPECT_TRUE(at::equal(first.full_tensor(), counting({4, 2})));
    EXPECT_EQ(first.to_local().size(0), rank < 2 ? 2 : 0);
    EXPECT_TRUE(at::equal(distribute_tensor(mine, mesh, {}, {.src_data_rank = 2}).to_local(), counting({4, 2}) + 200));
    const auto own = distribute_tensor(mine, mesh, {Shard(1)}, {.src_data_rank = std::nullopt});
    if (rank < 2) {
      EXPECT_TRUE(at::equal(own.to_local(), mine.narrow(1, rank, 1)));
    }
    EXPECT_TRUE(distribute_tensor(first, mesh, {Shard(0)}).is_same(first));
    EXPECT_ERROR(ValueError, distribute_tensor(first, mesh, {Shard(1)}), "distributed already");
    EXPECT_ERROR(Error, distribute_tensor(mine, mesh, {Partial()}), "Partial");
    EXPECT_ERROR(Error, distribute_tensor(torch::ones({2}, torch::requires_grad()) * 2, mesh), "autograd history");
  });
}

/// max(-a, -b) is not -max(a, b), and a product of sums is not the sum of products.
TEST(DTensors, APartialPassesThroughAnOperatorOnlyIfItsReductionDoes) {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> operators{
      [](const at::Tensor& x) { return x.clone(); },    [](const at::Tensor& x) { return x.neg(); },
      [](const at::Tensor& x) { return x.mul(-2); },    [](const at::Tensor& x) { return x + x; },
      [](const at::Tensor& x) { return x - x.div(3); }, [](const at::Tensor& x) { return x * x; },
      [](const at::Tensor& x) { return x / x.add(1); },
  };
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto mine = mesh.rank() == 0 ? torch::tensor({1.0, 5.0}) : torch::tensor({3.0, 2.0});
    for (const auto* reduction : {"sum", "avg", "product", "max", "min"}) {
      const auto partial = DTensor::from_local(mine, mesh, {Partial(reduction)});
      const auto whole = partial.full_tensor();
      for (std::size_t i = 0; i < operators.size(); ++i) {
        EXPECT_TRUE(at::allclose(DTensor(operators[i](partial)).full_tensor(), operators[i](whole)))
            << reduction << ", operator " << i;
      }
      EXPECT_EQ(DTensor(partial.clone()).placements(), partial.placements());
    }
    const auto sum = DTensor::from_local(mine, mesh, {Partial()});
    EXPECT_EQ(DTensor(sum + sum.neg()).placements(), Placements{Partial()});
    auto max = DTensor::from_local(mine, mesh, {Partial("max")});
    EXPECT_ERROR(NotSupportedError, max.neg_(), "redistribute()");
  });
}

TEST(DTensors, RedistributeRefusesPartialTargetsAndConvertsDtypes) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({4, 2}), mesh, {Shard(0)});
    EXPECT_ERROR(Error, x.redistribute({Partial()}), "only operators make Partial");
    const auto partial = laid_out(counting({4}), mesh, {Partial()});
    EXPECT_EQ(partial.redistribute({Partial()}).placements(), Placements{Partial()});
    const auto half = x.redistribute({}, {.forward_dtype = at::kHalf});
    EXPECT_EQ(half.scalar_type(), at::kHalf);
    EXPECT_TRUE(at::equal(half.to_local(), counting({4, 2}).to(at::kHalf)));

    // A gradient that half precision cannot hold shows in which type it was communicated.
    auto leaf = x.detach();
    leaf.requires_grad_();
    const auto full = DTensor(leaf).redistribute({}, {.backward_dtype = at::kHalf});
    (full * 1.0001).sum().backward();
    EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(DTensor(leaf.grad()).to_local()[0][0].item<float>(), 1.0F);
  });
}

TEST(DTensors, GradientsOfFromLocalAndToLocal) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    // The sum of both ranks' summands: each summand has the gradient of the sum.
    auto local = torch::full({3}, 2.0, torch::requires_grad());
    const auto sum = DTensor::from_local(local, mesh, {Partial()}).full_tensor();
    EXPECT_TRUE(at::equal(sum.detach(), torch::full({3}, 4.0)));
    (sum * 5).sum().backward();
    EXPECT_TRUE(at::equal(local.grad(), torch::full({3}, 5.0)));

    // Each rank uses the replicated tensor for another part of the result: the gradient is Partial.
    auto leaf = distribute_tensor(torch::ones({3}), mesh);
    leaf.requires_grad_();
    const auto part = leaf.to_local({.grad_placements = Placements{Partial()}}) * (mesh.rank() + 1.0);
    part.sum().backward();
    EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor(), torch::full({3}, 3.0)));
  });
}

TEST(DTensors, GradientsOfRedistributeForAllPlacements) {
  for (const Sizes& shape : {Sizes{2}, Sizes{3}, Sizes{2, 2}}) {
    on_mesh(shape, [](const DeviceMesh& mesh) {
      const auto dense = counting({5, 3});
      const auto weights = (dense * 0.3).cos();
      for (const auto& from : combinations({dense}, mesh.ndim(), true, 100, 1)) {
        for (const auto& to : combinations({dense}, mesh.ndim(), false, 100, 1)) {
          auto leaf = laid_out(dense, mesh, from[0]).detach();
          leaf.requires_grad_();
          const auto moved = DTensor(leaf).redistribute(to[0]);
          EXPECT_EQ(moved.placements(), to[0]);
          EXPECT_TRUE(at::allclose(moved.full_tensor().detach(), dense)) << to_string(from[0]) << to_string(to[0]);
          (moved * laid_out(weights, mesh, to[0])).sum().backward();
          const DTensor gradient(leaf.grad());
          EXPECT_TRUE(at::allclose(gradient.full_tensor(), weights)) << to_string(from[0]) << to_string(to[0]);
          // Every summand has the gradient of the sum; elsewhere the gradient lies as the tensor does.
          for (std::size_t dim = 0; dim < from[0].size(); ++dim) {
            EXPECT_EQ(gradient.placements()[dim], from[0][dim].is_partial() ? Placement(Replicate()) : from[0][dim]);
          }
        }
      }
    });
  }
}

TEST(DTensors, ToLocalWithoutGradientsIsTheLocalTensorAndWritesAreSeen) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto x = distribute_tensor(counting({4}), mesh, {Shard(0)});
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(x.to_local().is_same(x.to_local()));
    }
    // A backward that has saved the tensor is told that its memory was written through the local part.
    x.requires_grad_();
    const auto y = x * x;
    {
      const at::NoGradGuard no_grad;
      x.add_(1);
    }
    EXPECT_THROW(y.sum().backward(), c10::Error);
    const auto z = x.detach().requires_grad_();
    const auto w = z * z;
    DTensor(z.detach()).to_local().add_(1);
    EXPECT_THROW(w.sum().backward(), c10::Error);
  });
}

TEST(DTensors, FactoriesMakeTheirPartsOnly) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const Placements placements{Shard(0), Shard(1)};
    EXPECT_TRUE(at::equal(dtensor::ones({5, 3}, mesh, placements).full_tensor(), torch::ones({5, 3})));
    EXPECT_TRUE(at::equal(dtensor::zeros({5, 3}, mesh, placements).full_tensor(), torch::zeros({5, 3})));
    EXPECT_TRUE(at::equal(dtensor::full({5, 3}, 7, mesh, placements).full_tensor(), torch::full({5, 3}, 7)));
    const auto part = dtensor::empty({5, 3}, mesh, placements, torch::kHalf);
    EXPECT_EQ(part.to_local().numel(), (mesh.local_rank(0) == 0 ? 3 : 2) * (mesh.local_rank(1) == 0 ? 2 : 1));
    EXPECT_EQ(part.scalar_type(), at::kHalf);
    EXPECT_TRUE(dtensor::rand({4}, mesh, {}, torch::requires_grad()).requires_grad());
    EXPECT_ERROR(Error, dtensor::ones({4}, mesh, {Partial(), Replicate()}), "cannot be Partial");
  });
}

TEST(DTensors, RandomNumbersAreEqualWhereElementsAreAndDifferElsewhere) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    dtensor::manual_seed(7, mesh);
    // Sharded in rows, replicated in columns.
    const auto x = dtensor::rand({1000}, mesh, {Shard(0), Replicate()});
    const auto all = mesh.group(1)->all_gather_bytes(std::to_string(x.to_local().sum().item<double>()));
    EXPECT_EQ(all[0], all[1]);
    const auto rows = mesh.group(0)->all_gather_bytes(std::to_string(x.to_local().sum().item<double>()));
    EXPECT_NE(rows[0], rows[1]);
    const auto next = dtensor::rand({1000}, mesh, {Shard(0), Replicate()});
    EXPECT_FALSE(at::equal(next.to_local(), x.to_local()));
    dtensor::manual_seed(7, mesh);
    EXPECT_TRUE(at::equal(dtensor::rand({1000}, mesh, {Shard(0), Replicate()}).to_local(), x.to_local()));
    // Dropout of a replicated tensor leaves it replicated.
    const auto dropped = DTensor(torch::dropout(dtensor::ones({1000}, mesh), 0.25, true));
    for (const auto& group : mesh.all_groups()) {
      const auto sums = group->all_gather_bytes(std::to_string(dropped.to_local().sum().item<double>()));
      EXPECT_EQ(sums[0], sums[1]);
    }
    EXPECT_NEAR(dropped.full_tensor().mean().item<double>(), 1, 0.1);
  });
}

TEST(DTensors, WhatHasNoRuleIsRefusedByName) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({4, 4}), mesh, {Shard(0)});
    EXPECT_ERROR(NotSupportedError, at::linalg_qr(x), "aten::linalg_qr([S(0)] of sizes [4, 4])");
    EXPECT_ERROR(NotSupportedError, x + torch::ones({4, 4}), "a plain tensor of sizes [4, 4]");
    EXPECT_ERROR(NotSupportedError, torch::ones({4, 4}).add_(x), "a plain tensor");
    EXPECT_ERROR(NotSupportedError,
                 distribute_tensor(counting({4, 4}), mesh, {Replicate()}).add_(x).mul_(x).select(0, 1) + x.select(0, 1),
                 "cut or remove a sharded dimension");
    EXPECT_ERROR(NotSupportedError, laid_out(counting({4}), mesh, {Partial()}).exp_(), "redistribute()");
    EXPECT_THROW(x.data_ptr(), c10::Error);
    {
      const ImplicitReplication scope;
      EXPECT_TRUE(at::equal(DTensor(x + torch::ones({4, 4})).full_tensor(), counting({4, 4}) + 1));
      EXPECT_ERROR(NotSupportedError, x + torch::ones({4, 4}, torch::requires_grad()), "a plain tensor");
    }
  });
}

/// Backward of CUDA tensors runs on a thread of the autograd engine, with the state of the thread that called it.
TEST(DTensors, ImplicitReplicationGoesAlongWithTheStateOfAThread) {
  on_mesh({1}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({4}), mesh);
    const auto plain = torch::ones({4});
    std::optional<at::ThreadLocalState> state;
    {
      const ImplicitReplication scope;
      state.emplace();
    }
    EXPECT_ERROR(NotSupportedError, x + plain, "a plain tensor");
    std::thread([&] {
      EXPECT_ERROR(NotSupportedError, x + plain, "a plain tensor");
      const at::ThreadLocalStateGuard guard(*state);
      EXPECT_TRUE(at::equal(DTensor(x + plain).full_tensor(), counting({4}) + 1));
    }).join();
  });
}

TEST(DTensors, AViewThatHadToBeCopiedCannotBeWritten) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({3, 2}), mesh, {Shard(0)});
    const auto flat = x.view({6});
    EXPECT_TRUE(at::equal(DTensor(flat).full_tensor(), counting({6})));
    EXPECT_ERROR(NotSupportedError, flat.add_(1), "shares no memory");
    const auto even = distribute_tensor(counting({4, 2}), mesh, {Shard(0)});
    even.view({8}).add_(1);
    EXPECT_TRUE(at::equal(even.full_tensor(), counting({4, 2}) + 1));
  });
}

TEST(DTensors, ItemEqualAndPrinting) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({5}), mesh, {Shard(0)});
    EXPECT_EQ(x.sum().item<float>(), 10);
    EXPECT_TRUE(at::equal(x, distribute_tensor(counting({5}), mesh)));
    auto other = counting({5});
    other[4] = 7;
    EXPECT_FALSE(
        at::equal(x, distribute_tensor(other, mesh)));  // on both ranks, although only one holds the difference
    std::ostringstream text;
    text << x;
    EXPECT_THAT(text.str(), testing::StartsWith("[S(0)] on DeviceMesh(cpu"));
  });
}

TEST(DTensors, OfRanksOutsideTheMesh) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto x = distribute_tensor(counting({4, 2}), mesh, {Shard(0)});
    const auto y = DTensor((x * 2 + x).sum(1));
    EXPECT_EQ(y.sizes(), at::IntArrayRef({4}));
    if (group->rank() < 2) {
      EXPECT_TRUE(at::equal(y.full_tensor(), counting({4, 2}).mul(3).sum(1)));
    } else {
      EXPECT_EQ(y.to_local().numel(), 0);
    }
  });
}

TEST(DTensors, InInferenceMode) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({4, 2}), mesh, {Shard(0)});
    const auto w = distribute_tensor(counting({3, 2}), mesh);
    const c10::InferenceMode inference;
    const auto y = at::linear(x, w);
    EXPECT_TRUE(at::equal(DTensor(y).full_tensor(), at::linear(counting({4, 2}), counting({3, 2}))));
  });
}

struct Net : torch::nn::Module {
  at::Tensor w1, b1, w2, b2;
  explicit Net(const std::function<at::Tensor(const at::Tensor&, int)>& place) {
    const auto make = [](Sizes sizes, double scale) { return (counting(sizes) * 0.37).sin() * scale; };
    w1 = register_parameter("w1", place(make({6, 5}, 0.5), 0));
    b1 = register_parameter("b1", place(make({6}, 0.1), 1));
    w2 = register_parameter("w2", place(make({3, 6}, 0.5), 2));
    b2 = register_parameter("b2", place(make({3}, 0.1), 3));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(at::gelu(at::linear(x, w1, b1)), w2, b2); }
};

template <class Make>
void expect_training_like_dense(const Make& make_optimizer) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto leaf = [](const at::Tensor& tensor) { return tensor.clone().requires_grad_(); };
    Net dense([&](const at::Tensor& tensor, int) { return leaf(tensor); });
    // Column-parallel, then row-parallel; the batch is replicated.
    const std::vector<Placement> placements{Shard(0), Shard(0), Shard(1), Replicate()};
    Net distributed([&](const at::Tensor& tensor, int which) -> at::Tensor {
      return distribute_tensor(leaf(tensor), mesh, {placements[static_cast<std::size_t>(which)]});
    });
    // Replicated parameters, the batch sharded: data parallelism.
    Net replicated([&](const at::Tensor& tensor, int) -> at::Tensor { return distribute_tensor(leaf(tensor), mesh); });
    auto dense_optimizer = make_optimizer(dense.parameters());
    auto optimizer = make_optimizer(distributed.parameters());
    auto replicated_optimizer = make_optimizer(replicated.parameters());
    for (int step = 0; step < 5; ++step) {
      const auto x = (counting({7, 5}) * (0.1 + step)).cos();
      const auto y = (counting({7, 3}) * 0.3).sin();
      const auto run = [&](Net& net, auto& how, const at::Tensor& in, const at::Tensor& out) {
        how.zero_grad();
        const auto loss = torch::mse_loss(net.forward(in), out);
        loss.backward();
        how.step();
        return loss.template item<double>();
      };
      const auto expected = run(dense, dense_optimizer, x, y);
      EXPECT_NEAR(run(distributed, optimizer, distribute_tensor(x, mesh), distribute_tensor(y, mesh)), expected, 1e-5);
      EXPECT_NEAR(run(replicated, replicated_optimizer, distribute_tensor(x, mesh, {Shard(0)}),
                      distribute_tensor(y, mesh, {Shard(0)})),
                  expected, 1e-5);
    }
    for (const auto& item : dense.named_parameters()) {
      for (auto* net : {&distributed, &replicated}) {
        const DTensor parameter(net->named_parameters()[item.key()]);
        EXPECT_TRUE(at::allclose(parameter.full_tensor(), item.value(), 1e-4, 1e-5)) << item.key();
        EXPECT_EQ(DTensor(parameter.grad()).placements(), parameter.placements()) << item.key();
      }
    }
  });
}

TEST(DTensors, TrainWithSgdLikeDenseOnes) {
  expect_training_like_dense([](auto parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  });
}

TEST(DTensors, TrainWithAdamLikeDenseOnes) {
  expect_training_like_dense(
      [](auto parameters) { return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.01).amsgrad(true)); });
}

TEST(DTensors, TrainWithAdamWLikeDenseOnes) {
  expect_training_like_dense(
      [](auto parameters) { return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01)); });
}

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& rows) {
  return x * rows.unsqueeze(1);
}

TORCH_LIBRARY(cohort_dtensor_test, library) {
  library.def("scale(Tensor x, Tensor rows) -> Tensor");
}
TORCH_LIBRARY_IMPL(cohort_dtensor_test, CPU, library) {
  library.impl("scale", scale_rows);
}

TEST(DTensorRules, OfUsersAreFollowed) {
  const auto call_scale = [](const at::Tensor& x, const at::Tensor& rows) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("cohort_dtensor_test::scale", "").typed<decltype(scale_rows)>();
    return op.call(x, rows);
  };
  on_mesh({1}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(counting({4, 2}), mesh);
    EXPECT_ERROR(NotSupportedError, call_scale(x, distribute_tensor(counting({4}), mesh)),
                 "cohort_dtensor_test::scale");
  });
  const DTensorRule rule{
      .strategies = [](const RuleCall&) -> std::vector<ShardingStrategy> {
        return {{.arguments = {Shard(0), Shard(0)}, .results = {Shard(0)}},
                {.arguments = {Shard(1), Replicate()}, .results = {Shard(1)}},
                {.arguments = {Partial(), Replicate()}, .results = {Partial()}}};
      },
      .result_sizes = [](const RuleCall& call) -> std::vector<std::vector<std::int64_t>> { return {call.sizes[0]}; }};
  register_dtensor_rule("cohort_dtensor_test::scale", rule);
  EXPECT_ERROR(ValueError, register_dtensor_rule("cohort_dtensor_test::scale", rule), "already");
  EXPECT_ERROR(ValueError, register_dtensor_rule("cohort_dtensor_test::other", {}), "needs both");
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const std::vector<at::Tensor> dense{counting({5, 4}), counting({5})};
    for (const auto& placements : combinations(dense, 1, true, 100, 1)) {
      const DTensor y(call_scale(laid_out(dense[0], mesh, placements[0]), laid_out(dense[1], mesh, placements[1])));
      EXPECT_TRUE(at::allclose(y.full_tensor(), scale_rows(dense[0], dense[1])));
    }
  });
}

}  // namespace
}  // namespace cohort::test
