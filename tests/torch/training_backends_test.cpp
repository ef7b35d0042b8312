// SPDX-License-Identifier: BSD-3-Clause
//
// Captured steps, meshes, distributed tensors and functional collectives on backends whose ranks are processes: what
// other tests show in detail for threads holds on each of them.
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/parallelize.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "torch/bits.h"
#include "torch/ddp_test.h"
#include "torch/on_backends.h"

namespace cohort::test {
namespace {

class TrainingOnBackend : public OnBackend {};

/// The results of twenty steps and the parameters after them.
std::vector<at::Tensor> train(const ProcessGroupPtr& group, bool is_captured) {
  Mlp net;
  fill(*net, 3);
  net->to(torch::kFloat);
  DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0002});
  optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.01));
  int runs = 0;
  const auto body = [&](const at::Tensor& x) {
    ++runs;
    optimizer.zero_grad();
    const auto loss = ddp.forward(x).pow(2).mean();
    loss.backward();
    optimizer.step();
    const auto mean = functional::all_reduce(loss.detach(), "avg", group);
    const auto most = loss.detach() * 1;
    group->all_reduce(most, {.op = ReduceOp::max()});
    return mean + most;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}});
  std::vector<at::Tensor> all;
  for (int i = 0; i < 20; ++i) {
    const auto x = random_batch(100 * i + group->rank(), {5, 4}).to(torch::kFloat);
    all.push_back(is_captured ? step(x) : body(x).detach());
  }
  if (is_captured) {
    EXPECT_LE(runs, 8) << step.explain();
  }
  for (const auto& each : net->parameters()) all.push_back(each.detach());
  return all;
}

TEST_P(TrainingOnBackend, CapturedStepsHaveTheBitsOfEagerOnes) {
  run([](const ProcessGroupPtr& group) {
    const auto eager = train(group, false);
    const auto captured = train(group, true);
    ASSERT_EQ(captured.size(), eager.size());
    for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(have_same_bits(captured[i], eager[i])) << i;
  });
}

TEST_P(TrainingOnBackend, TensorParallelModulesTrainBesideDataParallelism) {
  run([](const ProcessGroupPtr& group) {
    const std::int64_t tp = group->size() % 2 == 0 ? 2 : group->size();
    const std::int64_t dp = group->size() / tp;
    const auto mesh = init_device_mesh("cpu", {dp, tp}, {"dp", "tp"}, {.process_group = group});
    Mlp dense(12);
    Mlp net(12);
    fill(*dense, 5);
    fill(*net, 5);
    parallelize_module(*net, mesh["tp"], {{"layer0", ColwiseParallel()}, {"layer1", RowwiseParallel()}});
    {
      DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"]});
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::SGD reference(dense->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 5; ++step) {
        const auto x = random_batch(step, {4 * dp, 4});
        reference.zero_grad();
        dense->forward(x).pow(2).mean().backward();
        reference.step();
        optimizer.zero_grad();
        const auto part = x.narrow(0, 4 * mesh.local_rank("dp"), 4).contiguous();
        ddp.forward(distribute_tensor(part, mesh["tp"])).pow(2).mean().backward();
        optimizer.step();
      }
    }
    for (const auto& each : dense->named_parameters()) {
      const auto whole = DTensor(net->named_parameters()[each.key()]).full_tensor();
      EXPECT_LT(distance(whole.detach(), each.value().detach()), 1e-10) << each.key();
    }
  });
}

TEST_P(TrainingOnBackend, DistributedTensorsMoveBetweenAllPlacements) {
  run([](const ProcessGroupPtr& group) {
    const auto mesh = DeviceMesh::from_group(group, "cpu");
    const auto whole = torch::arange(35, torch::kDouble).view({5, 7});
    const Placements places{Replicate(), Shard(0), Shard(1)};
    for (const auto& to : places) {
      for (const auto& from : places) {
        const auto moved = DTensor(distribute_tensor(whole, mesh, {from})).redistribute({to});
        EXPECT_TRUE(at::equal(moved.full_tensor(), whole)) << to_string(from) << " to " << to_string(to);
      }
      const auto summed = DTensor(DTensor::from_local(whole, mesh, {Partial()})).redistribute({to});
      EXPECT_TRUE(at::equal(summed.full_tensor(), whole * group->size())) << to_string(to);
    }
    // Every rank draws its own part, and the same numbers again from the same seed.
    const auto drawn = [&] {
      dtensor::manual_seed(3, mesh);
      return dtensor::randn({4000}, mesh, {Shard(0)}).full_tensor();
    };
    const auto normal = drawn();
    EXPECT_NEAR(normal.mean().item<double>(), 0, 0.1);
    EXPECT_NEAR(normal.std().item<double>(), 1, 0.1);
    EXPECT_TRUE(at::equal(drawn(), normal));

    const auto a = distribute_tensor(whole, mesh, {Shard(1)}).requires_grad_();
    const auto b = distribute_tensor(whole.t().contiguous(), mesh, {Shard(0)});
    const auto product = torch::mm(a, b);
    EXPECT_LT(distance(DTensor(product).full_tensor().detach(), torch::mm(whole, whole.t())), 1e-12);
    product.sum().backward();
    EXPECT_LT(distance(DTensor(a.grad()).full_tensor(), whole.sum(0).expand({5, 7})), 1e-12);
  });
}

TEST_P(TrainingOnBackend, FunctionalCollectivesGiveTheValuesOfAllRanksAndGradients) {
  run([](const ProcessGroupPtr& group) {
    const std::int64_t n = group->size();
    const auto of_rank = [](std::int64_t rank) {
      return torch::arange(6, torch::kDouble).view({2, 3}) + static_cast<double>(10 * rank);
    };
    std::vector<at::Tensor> all;
    for (std::int64_t rank = 0; rank < n; ++rank) all.push_back(of_rank(rank));
    const auto x = of_rank(group->rank());
    const auto sum = torch::stack(all).sum(0);
    EXPECT_TRUE(at::equal(functional::all_reduce(x, "sum", group) * 1, sum));
    EXPECT_TRUE(at::equal(functional::all_gather_tensor(x, 1, group) * 1, torch::cat(all, 1)));
    EXPECT_TRUE(at::equal(functional::broadcast(x, n - 1, group) * 1, all.back()));
    const auto wide = x.repeat({n, 1});
    EXPECT_TRUE(at::equal(functional::reduce_scatter_tensor(wide, "sum", 0, group) * 1, sum));
    const std::vector<std::int64_t> splits(static_cast<std::size_t>(n), 2);
    EXPECT_TRUE(at::equal(functional::all_to_all_single(wide, splits, splits, group) * 1, torch::cat(all, 0)));

    const auto leaf = of_rank(group->rank()).requires_grad_();
    functional::all_gather_tensor_autograd(leaf, 0, group).pow(2).sum().backward();
    EXPECT_TRUE(at::equal(leaf.grad(), 2 * static_cast<double>(n) * x));
    EXPECT_EQ(functional::unwaited_collectives(), 0U);
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, TrainingOnBackend, ::testing::ValuesIn(process_backends()),
                         [](const auto& each) { return to_string(each.param); });

}  // namespace
}  // namespace cohort::test
