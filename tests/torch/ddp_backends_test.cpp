// SPDX-License-Identifier: BSD-3-Clause
//
// Training with DDP on backends whose ranks are processes: what the other tests of this folder show in detail for
// threads holds on each of them.
#include <cohort/torch/ddp.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/join.h>
#include <cohort/torch/optimizer_in_backward.h>
#include <cohort/torch/sync_batch_norm.h>
#include <cohort/torch/zero_optimizer.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "torch/ddp_test.h"
#include "torch/on_backends.h"

namespace cohort::test {
namespace {

class DdpOnBackend : public OnBackend {};

/// Replicas are equal bit by bit, on backends that add in an order of their own as well: all ranks get the same sum.
void expect_equal_replicas(const ProcessGroupPtr& group, torch::nn::Module& net) {
  std::vector<at::Tensor> rows;
  for (const auto& each : net.parameters()) rows.push_back(each.detach().reshape({-1}));
  const auto mine = torch::cat(rows).contiguous();
  const auto bytes = static_cast<std::size_t>(mine.numel()) * mine.element_size();
  const std::string text(static_cast<const char*>(mine.data_ptr()), bytes);
  for (const auto& each : group->all_gather_bytes(text)) EXPECT_EQ(each, text) << "on rank " << group->rank();
}

TEST_P(DdpOnBackend, TrainsAsOneProcessWouldOnTheWholeBatch) {
  run([](const ProcessGroupPtr& group) {
    expect_same_as_one_process(group, {}, 50);
    expect_same_as_one_process(group, {.bucket_cap_mb = 0.001}, 20);
    expect_same_as_one_process(group, {.gradient_as_bucket_view = false}, 20);
    expect_same_as_one_process(group, {.find_unused_parameters = true}, 20);
    expect_same_as_one_process(group, {.static_graph = true}, 20);
    expect_same_as_one_process(group, {.batched_grad_copy = true}, 20);
  });
}

TEST_P(DdpOnBackend, AccumulatesWithoutCommunicatingUntilItIsToldTo) {
  run([](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto input = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    const double mean = (group->size() + 1) / 2.0;
    for (int round = 0; round < 3; ++round) {
      ddp.zero_grad();
      {
        const auto guard = ddp.no_sync();
        ddp.forward(input).sum().backward();
        EXPECT_EQ(grad_of(net->weight), group->rank() + 1.0);
      }
      ddp.forward(input).sum().backward();
      EXPECT_NEAR(grad_of(net->weight), 2 * mean, 1e-12);
    }
  });
}

TEST_P(DdpOnBackend, FindsParametersThatSomeRanksDoNotUse) {
  run([](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .find_unused_parameters = true});
    const auto one = torch::ones({1}, torch::kDouble);
    for (int user = 0; user < group->size(); ++user) {
      ddp.zero_grad();
      ddp.forward(one, group->rank() == user).sum().backward();
      EXPECT_NEAR(grad_of(net->a), 1, 1e-12);
      EXPECT_NEAR(grad_of(net->b), 1.0 / group->size(), 1e-12);
    }
  });
}

TEST_P(DdpOnBackend, RanksWithFewerInputsJoin) {
  run([](const ProcessGroupPtr& group) {
    Mlp net;
    fill(*net, group->rank());
    DistributedDataParallel ddp(net, {.process_group = group});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    join({&ddp}, [&] {
      for (int i = 0; i < 5 + 2 * group->rank(); ++i) {
        optimizer.zero_grad();
        ddp.forward(random_batch(i, {3, 4})).pow(2).mean().backward();
        optimizer.step();
      }
    });
    expect_equal_replicas(group, *net);
  });
}

TEST_P(DdpOnBackend, HooksOfTheLibraryAverage) {
  run([](const ProcessGroupPtr& group) {
    const auto mean = static_cast<float>(group->size() + 1) / 2;
    for (const bool is_narrow : {false, true}) {
      Scale net(1, 4);
      net->to(torch::kFloat);
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_comm_hook(is_narrow ? hooks::bf16_compress(group) : hooks::all_reduce(group));
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad();
        ddp.forward(torch::full({4}, static_cast<float>(group->rank() + 1))).sum().backward();
        EXPECT_TRUE(torch::allclose(net->weight.grad(), torch::full({4}, mean), is_narrow ? 0.02 : 1e-6));
      }
    }
  });
}

TEST_P(DdpOnBackend, BatchNormsSeeTheWholeBatchAndBuffersStayEqual) {
  run([](const ProcessGroupPtr& group) {
    SyncBatchNorm norm(SyncBatchNormOptions(3).process_group(group));
    norm->to(torch::kDouble);
    DistributedDataParallel ddp(norm, {.process_group = group});
    torch::nn::BatchNorm1d whole(3);
    whole->to(torch::kDouble);
    for (int step = 0; step < 3; ++step) {
      const auto x = random_batch(step, {4 * group->size(), 3});
      const auto mine = ddp.forward(x.narrow(0, 4 * group->rank(), 4));
      const auto all = whole->forward(x);
      EXPECT_LT(distance(mine.detach(), all.narrow(0, 4 * group->rank(), 4).detach()), 1e-10);
      mine.pow(2).sum().backward();
    }
    EXPECT_LT(distance(norm->running_mean, whole->running_mean), 1e-10);
    EXPECT_LT(distance(norm->running_var, whole->running_var), 1e-10);
  });
}

TEST_P(DdpOnBackend, ShardedOptimizersStepAsTheWholeOneDoes) {
  run([](const ProcessGroupPtr& group) {
    Mlp net;
    Mlp whole;
    fill(*net, 1);
    fill(*whole, 1);
    DistributedDataParallel a(net, {.process_group = group});
    DistributedDataParallel b(whole, {.process_group = group});
    ZeroOptimizer<torch::optim::AdamW> sharded(a.parameters(), 0.01, {.process_group = group});
    torch::optim::AdamW plain(b.parameters(), torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 10; ++step) {
      const auto x = random_batch(10 * step + group->rank(), {3, 4});
      a.zero_grad();
      a.forward(x).pow(2).mean().backward();
      sharded.step();
      b.zero_grad();
      b.forward(x).pow(2).mean().backward();
      plain.step();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(net->parameters()[i], whole->parameters()[i])) << "parameter " << i;
    }
    expect_equal_replicas(group, *net);
  });
}

TEST_P(DdpOnBackend, OptimizersStepInBackward) {
  run([](const ProcessGroupPtr& group) {
    Mlp net;
    Mlp plain;
    fill(*net, 1);
    fill(*plain, 1);
    torch::optim::AdamW attached(net->parameters(), torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW after(plain->parameters(), torch::optim::AdamWOptions(0.01));
    const OptimizerInBackward in_backward(attached);
    DistributedDataParallel a(net, {.process_group = group, .bucket_cap_mb = 0.0001});
    DistributedDataParallel b(plain, {.process_group = group, .bucket_cap_mb = 0.0001});
    for (int step = 0; step < 10; ++step) {
      const auto x = random_batch(10 * step + group->rank(), {3, 4});
      a.forward(x).pow(2).mean().backward();
      b.zero_grad();
      b.forward(x).pow(2).mean().backward();
      after.step();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(net->parameters()[i], plain->parameters()[i])) << "parameter " << i;
      EXPECT_FALSE(net->parameters()[i].grad().defined());
    }
    expect_equal_replicas(group, *net);
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, DdpOnBackend, ::testing::ValuesIn(process_backends()),
                         [](const auto& each) { return to_string(each.param); });

}  // namespace
}  // namespace cohort::test
