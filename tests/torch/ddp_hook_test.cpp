// SPDX-License-Identifier: BSD-3-Clause
//
// Hooks and optimizers that take a bucket, and when they do.
#include <cohort/torch/hooks.h>
#include <cohort/torch/zero_optimizer.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::HasSubstr;

TEST(DdpHook, GetsTheUndividedBucketAndItsResultIsUsed) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net;
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
    std::vector<std::int64_t> elements;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < bucket.gradients().size(); ++i) {
        EXPECT_EQ(bucket.gradients()[i].sizes(), bucket.parameters()[i].sizes());
        sum += bucket.gradients()[i].numel();
      }
      EXPECT_EQ(sum, bucket.buffer().numel());
      elements.push_back(sum);
      return all_reduce_async(*group, bucket.buffer()).then([](const at::Tensor& all) { return all * 10; });
    });
    EXPECT_EQ(ddp.logging_data().text("comm_hook"), "custom");
    EXPECT_ERROR(Error, ddp.register_comm_hook([](GradBucket& bucket) { return completed_future(bucket.buffer()); }),
                 "already");
    EXPECT_ERROR(TypeError, ddp.register_comm_hook(nullptr), "no hook");
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(torch::ones({1, 4}, torch::kDouble)).sum().backward();
      EXPECT_EQ(net->linears.back()->bias.grad()[0].item<double>(), 20.0) << "a sum, times ten";
    }
    EXPECT_EQ(std::accumulate(elements.end() - 3, elements.end(), std::int64_t{0}), elements.front());
  });
}

TEST(DdpHook, WhatIsWrongWithItComesOutOfBackward) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto x = torch::ones({1}, torch::kDouble);
    DistributedDataParallel throws(Scale(), {.process_group = group});
    throws.register_comm_hook([](GradBucket&) -> TensorFuture { throw ValueError("not today"); });
    EXPECT_ERROR(ValueError, throws.forward(x).sum().backward(), "not today");
    DistributedDataParallel wrong(Scale(), {.process_group = group});
    wrong.register_comm_hook([](GradBucket&) { return completed_future(torch::ones({5})); });
    EXPECT_ERROR(Error, wrong.forward(x).sum().backward(), "returned 5 elements");
  });
}

TEST(Ddp, CommunicationOverlapsBackwardInOrder) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      Mlp net(64, 6);
      DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.01, .static_graph = is_static});
      std::vector<std::size_t> order;
      std::vector<bool> first_layer_was_there;
      ddp.register_comm_hook([&](GradBucket& bucket) {
        order.push_back(bucket.index());
        first_layer_was_there.push_back(net->linears[0]->weight.grad().defined());
        return all_reduce_async(*group, bucket.buffer());
      });
      for (int i = 0; i < 4; ++i) {
        for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
        order.clear();
        first_layer_was_there.clear();
        ddp.forward(random_batch(i, {4, 4})).sum().backward();
        if (i == 0) {
          EXPECT_TRUE(first_layer_was_there.front()) << "one bucket, and a static graph is learnt first";
        }
      }
      ASSERT_GE(order.size(), 3U);
      EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
      EXPECT_FALSE(first_layer_was_there.front()) << "while the first layer's gradient was still to come";
    });
  }
}

TEST(DdpHook, ThoseOfTheLibraryAverage) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const bool is_narrow : {false, true}) {
      Scale net(1, 4);
      net->to(torch::kFloat);
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_comm_hook(is_narrow ? hooks::bf16_compress(group) : hooks::all_reduce(group));
      EXPECT_THAT(ddp.logging_data().text("comm_hook"), HasSubstr(is_narrow ? "bf16" : "all_reduce"));
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad();
        ddp.forward(torch::full({4}, static_cast<float>(group->rank() + 1))).sum().backward();
        EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({4}, 1.5F)));
      }
    }
  });
}

TEST(DdpZeroStep, StepsBucketByBucket) {
  for (const int size : {1, 2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      Mlp sharded;
      Mlp plain;
      fill(*sharded, 1);
      fill(*plain, 1);
      DistributedDataParallel a(sharded, {.process_group = group, .bucket_cap_mb = 0.0001});
      DistributedDataParallel b(plain, {.process_group = group});
      a.register_zero_step(std::make_shared<ZeroOptimizer<torch::optim::AdamW>>(
          a.parameters(), torch::optim::AdamWOptions(0.01), ZeroOptions{.process_group = group}));
      EXPECT_ERROR(Error, a.register_comm_hook(hooks::all_reduce(group)), "a ZeRO step takes averaged gradients");
      torch::optim::AdamW optimizer(b.parameters(), torch::optim::AdamWOptions(0.01));
      for (int i = 0; i < 10; ++i) {
        const auto x = random_batch(10 * i + group->rank(), {3, 4});
        a.zero_grad();
        a.forward(x).pow(2).mean().backward();
        optimizer.zero_grad();
        b.forward(x).pow(2).mean().backward();
        optimizer.step();
      }
      for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
        EXPECT_TRUE(torch::equal(sharded->parameters()[i], plain->parameters()[i])) << i;
      }
      DistributedDataParallel other(Mlp(), {.process_group = group});
      const auto stranger = std::make_shared<ZeroOptimizer<torch::optim::SGD>>(
          plain->parameters(), torch::optim::SGDOptions(0.01), ZeroOptions{.process_group = group});
      EXPECT_THROW(other.register_zero_step(stranger), ValueError);
    });
  }
}

TEST(DdpZeroStep, SharesABucketWhileLaterOnesAreReduced) {
  // The group does not go on to the last reduction of a backward before parameters of the first bucket have been
  // shared, which happens only if sharing does not queue behind that reduction.
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net;
    fill(*net, 1);
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
    const auto zero = std::make_shared<ZeroOptimizer<torch::optim::SGD>>(
        ddp.parameters(), torch::optim::SGDOptions(0.01), ZeroOptions{.process_group = group});
    ddp.register_zero_step(zero);
    ASSERT_NE(zero->sharing_group(), group);
    const auto iterate = [&] {
      ddp.zero_grad();
      ddp.forward(random_batch(group->rank(), {3, 4})).pow(2).mean().backward();
    };
    iterate();  // the buckets are rebuilt after it
    iterate();
    std::atomic<int> reductions{0};
    std::atomic<int> last{-1};
    std::atomic<int> shared{0};
    group->add_post_hook([&](const HookEvent& event) {
      if (event.op != OpType::all_reduce || ++reductions != last.load() - 1) return;
      const auto deadline = Deadline::after(std::chrono::seconds(20));
      while (shared.load() == 0 && !deadline.expired()) std::this_thread::yield();
      EXPECT_GT(shared.load(), 0) << "nothing was shared before the last reduction";
    });
    zero->sharing_group()->add_post_hook([&](const HookEvent& event) {
      if (event.op == OpType::broadcast) ++shared;
    });
    iterate();
    ASSERT_GE(reductions.load(), 3);
    last = reductions.load();
    reductions = 0;
    shared = 0;
    iterate();
    EXPECT_EQ(reductions.load(), last.load());
    group->barrier();
  });
}

}  // namespace
}  // namespace cohort::test
