// SPDX-License-Identifier: BSD-3-Clause
//
// What users may do that takes care on our side: leaves that come to require gradients later, plain tensors in lists,
// dimensions that are not there, and operators that cannot be had.
#include <cohort/error.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/parallelize.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "torch/dtensor/laid_out.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

void on_ranks(int ranks, const std::function<void(const DeviceMesh&)>& body) {
  with_torch_threads(ranks, [&](const ProcessGroupPtr& group) {
    body(init_device_mesh("cpu", {ranks}, {"tp"}, {.process_group = group}));
  });
}

at::Tensor rows(std::int64_t count) {
  return torch::arange(2 * count, torch::kFloat).view({count, 2});
}

/// The weight of a batch that is sharded has a gradient that is Partial, unless somebody sums it up.
TEST(LeavesMadeByRequiresGrad, HaveGradientsThatLieAsTheyDo) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto batch = distribute_tensor(rows(4), mesh, {Shard(0)});
    auto weight = distribute_tensor(torch::ones({2, 3}), mesh);
    weight.requires_grad_();
    for (int backward = 1; backward <= 2; ++backward) {
      batch.mm(weight).sum().backward();
      EXPECT_EQ(DTensor(weight.grad()).placements(), Placements{Replicate()});
      const auto expected = rows(4).sum(0).unsqueeze(1).expand({2, 3}) * backward;
      EXPECT_TRUE(at::allclose(DTensor(weight.grad()).to_local(), expected));
    }
    // A tensor that was used before it required gradients, and one that is used by to_local() alone.
    auto later = distribute_tensor(torch::ones({2, 3}), mesh, {Shard(1)});
    static_cast<void>(later + 1);
    later.requires_grad_();
    batch.mm(later).sum().backward();
    EXPECT_EQ(DTensor(later.grad()).placements(), Placements{Shard(1)});
    auto used_locally = distribute_tensor(torch::ones({3}), mesh);
    used_locally.requires_grad_();
    used_locally.to_local({.grad_placements = Placements{Partial()}}).sum().backward();
    EXPECT_EQ(DTensor(used_locally.grad()).placements(), Placements{Replicate()});
    EXPECT_TRUE(at::equal(DTensor(used_locally.grad()).to_local(), torch::full({3}, 2.0)));
    // What is detached from a leaf is another tensor.
    auto other = weight.detach();
    other.requires_grad_();
    batch.mm(other).sum().backward();
    EXPECT_EQ(DTensor(other.grad()).placements(), Placements{Replicate()});
  });
}

TEST(LeavesMadeByRequiresGrad, OfPartialTensorsHaveTheGradientOfTheSum) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto leaf = laid_out(rows(3), mesh, {Partial()}).detach();
    leaf.requires_grad_();
    (leaf * 2).sum().backward();
    EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor(), torch::full({3, 2}, 2.0)));
  });
}

TEST(PlainTensors, InListsCountAsReplicatedWithinImplicitReplication) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto sharded = distribute_tensor(rows(3), mesh, {Shard(1)});
    const std::vector<at::Tensor> mixed{sharded, rows(2)};
    EXPECT_ERROR(NotSupportedError, at::cat(mixed), "ImplicitReplication");
    const ImplicitReplication scope;
    EXPECT_TRUE(at::equal(DTensor(at::cat(mixed)).full_tensor(), at::cat({rows(3), rows(2)})));
    EXPECT_TRUE(at::equal(DTensor(at::stack({rows(3), sharded}, 1)).full_tensor(), at::stack({rows(3), rows(3)}, 1)));
    EXPECT_FALSE(is_dtensor(mixed[1]));
    EXPECT_ERROR(NotSupportedError, at::cat({sharded, torch::ones({1, 2}, torch::requires_grad())}), "plain tensor");
  });
}

/// Only zeros that stand for a missing gradient: what a function of the user's makes in backward may differ on the
/// ranks.
TEST(PlainTensors, AreRefusedInBackwardAsWell) {
  struct Mixes : torch::autograd::Function<Mixes> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      return {gradients[0] + torch::ones({3, 2})};
    }
  };
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::Tensor leaf = distribute_tensor(rows(3).requires_grad_(), mesh);
    EXPECT_ERROR(NotSupportedError, Mixes::apply(leaf).sum().backward(), "a plain tensor of sizes [3, 2]");
  });
}

TEST(CopiedViews, CannotBeWrittenThroughViewsOfThem) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(rows(3), mesh, {Shard(0)});
    const auto copied = x.view({2, 3});
    EXPECT_ERROR(NotSupportedError, copied.t().add_(1), "shares no memory");
    EXPECT_ERROR(NotSupportedError, copied[0].fill_(1), "shares no memory");
    EXPECT_ERROR(NotSupportedError, copied.unbind(1)[0].zero_(), "shares no memory");
    EXPECT_ERROR(NotSupportedError, copied.variable_data().add_(1), "shares no memory");
    EXPECT_TRUE(at::equal(DTensor(copied.t().clone().add_(1)).full_tensor(), rows(3).view({2, 3}).t() + 1));
  });
}

/// The gradient of a reshaped tensor may be a copied view, and the second backward adds to it.
TEST(CopiedViews, OfGradientsAreAddedTo) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto leaf = distribute_tensor(rows(3), mesh, {Shard(0)});
    leaf.requires_grad_();
    for (int backward = 1; backward <= 3; ++backward) {
      leaf.view({2, 3}).t().sum().backward();
      leaf.t().reshape({6}).sum().backward();
    }
    EXPECT_TRUE(at::equal(DTensor(leaf.grad()).full_tensor(), torch::full({3, 2}, 6.0)));
  });
}

TEST(DimensionsThatAreNotThere, AreErrorsAsOfDenseTensors) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(rows(4), mesh, {Shard(0)});
    const auto scalar = distribute_tensor(torch::tensor(3.0), mesh);
    EXPECT_THROW(x.sum(2), c10::IndexError);
    EXPECT_THROW(x.amax(-3), c10::IndexError);
    EXPECT_THROW(x.softmax(2), c10::IndexError);
    EXPECT_THROW(x.transpose(0, 9), c10::IndexError);
    EXPECT_THROW(x.squeeze(5), c10::IndexError);
    EXPECT_THROW(x.slice(2, 0, 1), c10::IndexError);
    EXPECT_THROW(x.select(7, 0), c10::IndexError);
    EXPECT_THROW(x.flip({4}), c10::IndexError);
    EXPECT_THROW(at::cat({x, x}, 3), c10::IndexError);
    EXPECT_THROW(scalar.slice(0, 0, 1), c10::IndexError);
    EXPECT_EQ(scalar.sum(0).item<float>(), 3);
    EXPECT_EQ(scalar.squeeze(-1).item<float>(), 3);
  });
}

TEST(OperatorsWithoutARule, SayWhatToDo) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    torch::nn::BatchNorm1d norm(2);
    norm->weight = distribute_tensor(norm->weight.detach(), mesh);
    norm->bias = distribute_tensor(norm->bias.detach(), mesh);
    EXPECT_ERROR(NotSupportedError, norm->forward(distribute_tensor(rows(4), mesh, {Shard(0)})), "SyncBatchNorm");
    EXPECT_ERROR(NotSupportedError, at::linalg_det(distribute_tensor(rows(2), mesh)), "register_dtensor_rule()");
  });
}

TEST(ParallelizePlans, NameTheModuleItselfByNoName) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    torch::nn::Linear linear(3, 4);
    EXPECT_ERROR(ValueError, parallelize_module(*linear, mesh, {{"*", ColwiseParallel()}}),
                 "no module is called \"*\"");
    parallelize_module(*linear, mesh, {{"", ColwiseParallel()}});
    EXPECT_EQ(DTensor(linear->weight).placements(), Placements{Shard(0)});
    EXPECT_EQ(DTensor(linear->bias).placements(), Placements{Shard(0)});
  });
}

struct FailsOnceImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  bool fails = true;
  FailsOnceImpl() { linear = register_module("linear", torch::nn::Linear(2, 2)); }
  at::Tensor forward(const at::Tensor& x) {
    EXPECT_TRUE(is_dtensor(linear->weight));
    if (fails) throw std::runtime_error("this forward fails");
    return linear->forward(x);
  }
};
TORCH_MODULE(FailsOnce);

TEST(ForwardUnderDataParallelism, LeavesTheLocalParametersBehindIfItThrows) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
    FailsOnce net;
    parallelize_module(*net, mesh["tp"], {{"linear", ColwiseParallel()}});
    DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"]});
    const auto local = net->linear->weight;
    const auto x = distribute_tensor(rows(4), mesh["tp"]);
    EXPECT_THROW(ddp.forward(x), std::runtime_error);
    EXPECT_TRUE(net->linear->weight.is_same(local));
    EXPECT_FALSE(is_dtensor(net->named_parameters()["linear.weight"]));
    net->fails = false;
    EXPECT_TRUE(is_dtensor(ddp.forward(x)));
    EXPECT_TRUE(net->linear->weight.is_same(local));
  });
}

}  // namespace
}  // namespace cohort::test
