// SPDX-License-Identifier: BSD-3-Clause
//
// Mistakes about a tensor as a whole are errors on all ranks alike, before any of them waits for another. And what the
// parts alone would get wrong: sums in half precision, gradients that are missing, errors between two collectives.
#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "torch/dtensor/laid_out.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Tensors = std::vector<at::Tensor>;

void on_ranks_of_mesh(const std::vector<std::int64_t>& shape, const std::function<void(const DeviceMesh&)>& body) {
  const auto ranks = static_cast<int>(c10::multiply_integers(shape));
  with_torch_threads(
      ranks, [&](const ProcessGroupPtr& group) { body(init_device_mesh("cpu", shape, {}, {.process_group = group})); });
}

struct Misfit {
  std::string name;
  Tensors tensors;
  std::function<void(const Tensors&)> run;
};

at::Tensor ones_of(std::vector<std::int64_t> sizes) {
  return torch::ones(sizes);
}
at::Tensor zero_indices(std::vector<std::int64_t> sizes) {
  return torch::zeros(sizes, torch::kLong);
}

/// Parts of some of these fit together on some ranks, or on all.
std::vector<Misfit> misfits() {
  using X = const Tensors&;
  return {
      {"mm", {ones_of({4, 255}), ones_of({256, 4})}, [](X x) { x[0].mm(x[1]); }},
      {"mm_of_a_vector", {ones_of({4, 3}), ones_of({3})}, [](X x) { x[0].mm(x[1]); }},
      {"bmm_batches", {ones_of({3, 4, 2}), ones_of({4, 2, 5})}, [](X x) { x[0].bmm(x[1]); }},
      {"bmm", {ones_of({3, 4, 3}), ones_of({3, 4, 5})}, [](X x) { x[0].bmm(x[1]); }},
      {"addmm", {ones_of({2}), ones_of({5, 3}), ones_of({3, 4})}, [](X x) { at::addmm(x[0], x[1], x[2]); }},
      {"linear", {ones_of({5, 3}), ones_of({4, 3}), ones_of({2})}, [](X x) { at::linear(x[0], x[1], x[2]); }},
      {"baddbmm",
       {ones_of({3, 5, 2}), ones_of({3, 5, 2}), ones_of({3, 2, 4})},
       [](X x) { at::baddbmm(x[0], x[1], x[2]); }},
      {"dot", {ones_of({7}), ones_of({8})}, [](X x) { x[0].dot(x[1]); }},
      {"mv", {ones_of({5, 3}), ones_of({4})}, [](X x) { x[0].mv(x[1]); }},
      {"cat",
       {ones_of({5, 4}), ones_of({3, 3})},
       [](X x) {
         at::cat({x[0], x[1]}, 0);
       }},
      {"stack",
       {ones_of({5, 4}), ones_of({6, 4})},
       [](X x) {
         at::stack({x[0], x[1]});
       }},
      {"index_select", {ones_of({5, 4}), zero_indices({2, 2})}, [](X x) { x[0].index_select(0, x[1]); }},
      {"gather", {ones_of({5, 4}), zero_indices({6, 2})}, [](X x) { x[0].gather(1, x[1]); }},
      {"gather_dims", {ones_of({5, 4}), zero_indices({5})}, [](X x) { x[0].gather(0, x[1]); }},
      {"scatter_add",
       {ones_of({5, 4}), zero_indices({5, 3}), ones_of({4, 4})},
       [](X x) { x[0].scatter_add_(1, x[1], x[2]); }},
      {"index_add", {ones_of({5, 4}), zero_indices({3}), ones_of({2, 4})}, [](X x) { x[0].index_add_(0, x[1], x[2]); }},
      {"embedding", {ones_of({5}), zero_indices({3})}, [](X x) { at::embedding(x[0], x[1]); }},
      {"embedding_backward",
       {ones_of({5, 4}), zero_indices({6})},
       [](X x) { at::embedding_dense_backward(x[0], x[1], 7, -1, false); }},
      {"nll_loss", {ones_of({5, 7}), zero_indices({3})}, [](X x) { at::nll_loss(x[0], x[1]); }},
      {"nll_loss_weights",
       {ones_of({5, 7}), zero_indices({5}), ones_of({4})},
       [](X x) { at::nll_loss(x[0], x[1], x[2]); }},
      {"mse_loss", {ones_of({5, 4}), ones_of({6, 4})}, [](X x) { at::mse_loss(x[0], x[1]); }},
      {"layer_norm", {ones_of({5, 4}), ones_of({3})}, [](X x) { at::layer_norm(x[0], {4}, x[1]); }},
      {"layer_norm_sizes",
       {ones_of({5, 4})},
       [](X x) {
         at::native_layer_norm(x[0], {1, 5, 4}, {}, {}, 0.1);
       }},
      {"add", {ones_of({4, 3}), ones_of({2, 3})}, [](X x) { at::add(x[0], x[1]); }},
      {"add_in_place", {ones_of({1, 4}), ones_of({3, 4})}, [](X x) { x[0].add_(x[1]); }},
      {"permute", {ones_of({4, 3})}, [](X x) { x[0].permute({0}); }},
      {"permute_twice",
       {ones_of({4, 3})},
       [](X x) {
         x[0].permute({0, 0});
       }},
      {"expand", {ones_of({4, 3})}, [](X x) { x[0].expand({3}); }},
      {"expand_more",
       {ones_of({4, 3})},
       [](X x) {
         x[0].expand({4, 6});
       }},
      {"slice", {ones_of({4, 3})}, [](X x) { x[0].slice(1, 0, 3, 0); }},
      {"split_with_sizes",
       {ones_of({4, 3})},
       [](X x) {
         x[0].split_with_sizes({1, 1}, 1);
       }},
      {"select", {ones_of({4, 3})}, [](X x) { x[0].select(1, 3); }},
  };
}

/// The error, and nothing if there is none.
std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const ValueError& error) {
    return error.what();
  } catch (const c10::IndexError& error) {
    return error.what_without_backtrace();
  }
  return {};
}

TEST(GlobalSizes, AreCheckedOnAllRanksAlike) {
  for (const std::int64_t ranks : {2, 3}) {
    on_ranks_of_mesh({ranks}, [](const DeviceMesh& mesh) {
      for (const auto& what : misfits()) {
        EXPECT_ANY_THROW(what.run(what.tensors)) << what.name << " of dense tensors";
        for (const auto& placements : combinations(what.tensors, 1, true, 30, 1)) {
          Tensors distributed;
          for (std::size_t i = 0; i < placements.size(); ++i) {
            distributed.push_back(laid_out(what.tensors[i], mesh, placements[i]));
          }
          const auto error = error_of([&] { what.run(distributed); });
          EXPECT_FALSE(error.empty()) << what.name;
          const auto all = mesh.group()->all_gather_bytes(error);  // nobody waits elsewhere
          for (const auto& each : all) EXPECT_EQ(each, error) << what.name;
          if (HasFailure()) return;
        }
      }
      auto out = laid_out(ones_of({3, 4}), mesh, {Shard(0)});
      const auto row = laid_out(ones_of({4}), mesh, {Replicate()});
      EXPECT_ERROR(ValueError, at::add_out(out, row, row), "the tensor that is written");
    });
  }
}

TEST(GlobalValues, IndicesOfNoRowAreErrorsAsOfADenseTable) {
  for (const std::int64_t rows : {7, 2}) {  // on the last rank there are some, or none
    on_ranks_of_mesh({3}, [rows](const DeviceMesh& mesh) {
      const auto dense = torch::arange(rows * 4, torch::kFloat).view({rows, 4});
      const auto table = distribute_tensor(dense, mesh, {Shard(0)});
      const auto look_up = [&](std::vector<std::int64_t> which) {
        return DTensor(at::embedding(table, distribute_tensor(torch::tensor(which), mesh))).full_tensor();
      };
      EXPECT_TRUE(at::equal(look_up({0, rows - 1, 1}), at::embedding(dense, torch::tensor({0L, rows - 1, 1L}))));
      for (const std::int64_t wrong : {rows, rows + 1, rows + 50, std::int64_t{-1}, std::int64_t{-50}}) {
        EXPECT_THROW(look_up({0, wrong}), c10::Error) << wrong;
      }
    });
  }
}

TEST(GlobalValues, TargetsOfNoClassAreErrorsAsOfDenseScores) {
  for (const std::int64_t classes : {7, 2}) {
    on_ranks_of_mesh({3}, [classes](const DeviceMesh& mesh) {
      const auto dense = torch::arange(3 * classes, torch::kFloat).view({3, classes});
      const auto scores = distribute_tensor(dense, mesh, {Shard(1)});
      const auto loss = [&](const at::Tensor& of, const std::vector<std::int64_t>& which, std::int64_t reduction) {
        auto targets = torch::tensor(which);
        if (is_dtensor(of)) targets = distribute_tensor(targets, mesh);
        return at::nll_loss(of, targets, {}, reduction, -100);
      };
      const std::vector<std::int64_t> right{0, -100, classes - 1};
      for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
        EXPECT_TRUE(at::allclose(DTensor(loss(scores, right, reduction)).full_tensor(), loss(dense, right, reduction)));
        for (const std::int64_t wrong : {classes, classes + 1, classes + 50, std::int64_t{-1}, std::int64_t{-50}}) {
          EXPECT_THROW(loss(scores, {0, wrong, 1}, reduction), c10::Error) << wrong;
        }
      }
    });
  }
}

/// With the batch sharded, one rank has the wrong target, and the others are in the collective that follows.
TEST(GlobalValues, ATargetOfNoClassOnOneRankIsToldToItsPeers) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {  // libtorch's kernel, and the rule's own sum
    on_ranks_of_mesh({3}, [dtype](const DeviceMesh& mesh) {
      const auto scores = distribute_tensor(torch::ones({6, 4}).to(dtype), mesh, {Shard(0)});
      const auto targets = distribute_tensor(torch::tensor({0, 1, 2, 50, 3, 0}), mesh, {Shard(0)});
      if (mesh.rank() == 1) {
        EXPECT_THROW(at::nll_loss(scores, targets), c10::Error);
      } else {
        EXPECT_ERROR(DistributedError, at::nll_loss(scores, targets), "rank 1 failed within nll_loss");
      }
    });
  }
}

/// What all ranks see alike breaks no group.
TEST(GlobalValues, WrongDtypesOfALossAreErrorsOnAllRanksAndNothingElse) {
  on_ranks_of_mesh({3}, [](const DeviceMesh& mesh) {
    const auto scores = distribute_tensor(torch::rand({6, 4}), mesh, {Shard(0)});
    const auto targets = distribute_tensor(torch::tensor({0, 1, 2, 3, 3, 0}), mesh, {Shard(0)});
    const auto weights = distribute_tensor(torch::ones({4}), mesh);
    EXPECT_ANY_THROW(at::nll_loss(scores, targets.to(torch::kInt)));
    EXPECT_ANY_THROW(at::nll_loss(scores, targets, weights.to(torch::kDouble)));
    EXPECT_NO_THROW(mesh.group(0)->barrier());
    EXPECT_TRUE(at::allclose(DTensor(at::nll_loss(scores, targets, weights)).full_tensor(),
                             DTensor(at::nll_loss(scores, targets.to(torch::kByte), weights)).full_tensor()));
  });
}

/// The sums would be infinite in half precision, the results are not.
TEST(HalfPrecision, IsSummedUpInSingle) {
  on_ranks_of_mesh({2}, [](const DeviceMesh& mesh) {
    const auto of = [&](std::vector<std::int64_t> sizes, double value) {
      return distribute_tensor(torch::full(sizes, value).to(torch::kHalf), mesh, {Shard(0)});
    };
    const auto expect = [](const at::Tensor& result, double value, const char* what) {
      EXPECT_EQ(result.scalar_type(), torch::kHalf) << what;
      EXPECT_NEAR(DTensor(result).full_tensor().to(torch::kFloat).mean().item<double>(), value, value / 500) << what;
    };
    const auto x = of({8192, 2}, 30);
    expect(x.mean(), 30, "mean");
    expect(x.mean(0), 30, "mean of a dimension");
    expect(at::mse_loss(x, of({8192, 2}, 10)), 400, "mse_loss");
    expect(x.norm(), 3840, "norm");
    expect(at::linalg_vector_norm(x, 2, at::IntArrayRef({0})), 2715, "norm of a dimension");
    expect(at::linalg_vector_norm(x, 2, at::IntArrayRef({0}), false, torch::kHalf), 2715, "norm with a dtype");
    expect(at::linalg_vector_norm(x, INFINITY), 30, "greatest");
    const auto targets = distribute_tensor(torch::zeros({8192}, torch::kLong), mesh, {Shard(0)});
    expect(at::nll_loss(-x, targets), 30, "nll_loss");
    const auto by_class = distribute_tensor(torch::full({8192, 2}, -30).to(torch::kHalf), mesh, {Shard(1)});
    expect(at::nll_loss(by_class, targets), 30, "nll_loss by classes");
  });
}

struct Twice : torch::autograd::Function<Twice> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST(FunctionsOfTheUsers, HaveGradientsOfAVariableOfTypeDTensor) {
  on_ranks_of_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor leaf = distribute_tensor(ones_of({4, 3}), mesh, {Shard(0)});
    leaf.requires_grad_();
    const DTensor variable(leaf);
    const auto result = Twice::apply(variable);
    ASSERT_TRUE(result.requires_grad());
    result.sum().backward();
    EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor(), torch::full({4, 3}, 2.0)));
    EXPECT_TRUE(Twice::apply(DTensor(leaf)).requires_grad());
  });
}

/// A plain tensor whose values happen to be those of a missing gradient, on one rank.
TEST(MissingGradients, AreNotRecognisedByTheirValues) {
  struct Mixes : torch::autograd::Function<Mixes> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double value) {
      context->saved_data["value"] = value;
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      return {gradients[0] * torch::full({3, 2}, context->saved_data["value"].toDouble()), at::Tensor()};
    }
  };
  on_ranks_of_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor leaf = distribute_tensor(ones_of({3, 2}), mesh);
    leaf.requires_grad_();
    const double mask = mesh.rank() == 0 ? 0 : 1;
    EXPECT_ERROR(NotSupportedError, Mixes::apply(leaf, mask).sum().backward(), "a plain tensor of sizes [3, 2]");
  });
}

TEST(MissingGradients, AreZerosHoweverTheOtherPartsWereUsed) {
  using Use = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<Use> uses{
      [](const at::Tensor& part) { return part * 3; },
      [](const at::Tensor& part) { return DTensor(part).redistribute({Shard(0)}) * 3; },
      [](const at::Tensor& part) { return DTensor(part).full_tensor() * 3; },
      [](const at::Tensor& part) { return Twice::apply(part) * 1.5; },
      [](const at::Tensor& part) { return part.t() * 3; },
  };
  on_ranks_of_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const auto& placement : placements_of(2, true)) {
      if (placement.is_shard(1)) continue;  // cut
      for (const auto& use : uses) {
        auto leaf = laid_out(ones_of({3, 5}), mesh, {placement}).detach();
        leaf.requires_grad_();
        const auto expected = at::cat({torch::zeros({3, 2}), torch::full({3, 2}, 3.0), torch::zeros({3, 1})}, 1);
        const auto used = use(leaf.split(2, 1)[1]).sum();
        used.backward({}, true);
        EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor(), expected));
        used.backward();
        EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor(), expected * 2));
      }
      auto leaf = laid_out(ones_of({3, 5}), mesh, {placement}).detach();
      leaf.requires_grad_();
      (leaf.unbind(1)[4] + leaf.split_with_sizes({1, 4}, 1)[0].squeeze(1)).sum().backward();
      EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor().sum(0), torch::tensor({3.0F, 0.0F, 0.0F, 0.0F, 3.0F})));
    }
  });
}

TEST(MissingGradients, OfPartsAtWhichBackwardBeginsAreRefused) {
  on_ranks_of_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor leaf = distribute_tensor(ones_of({3, 4}), mesh);
    leaf.requires_grad_();
    const auto gradient = distribute_tensor(ones_of({3, 2}), mesh);
    EXPECT_ERROR(NotSupportedError, leaf.chunk(2, 1)[0].backward(gradient), "begin it at something");
  });
}

/// Half of the ranks have fewer rows than they should, which is seen after the columns have been exchanged.
TEST(ErrorsBetweenCollectives, AreToldToThePeersAtOnce) {
  on_ranks_of_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const bool is_short = mesh.local_rank(1) == 1;
    const auto part = torch::ones({is_short ? 1 : 2, 2});
    const dtensor::Layout from{.mesh = mesh, .placements = {Shard(1), Shard(0)}};
    const dtensor::Layout to{.mesh = mesh, .placements = {Replicate(), Replicate()}};
    const auto* const said = is_short ? "holds 1 elements of dimension 0" : "failed within a redistribution";
    EXPECT_ERROR(Error, dtensor::redistribute_local(part, {4, 4}, from, to), said);
    mesh.group(0)->barrier();  // this one has not failed
  });
}

}  // namespace
}  // namespace cohort::test
