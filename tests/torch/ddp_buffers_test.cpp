// SPDX-License-Identifier: BSD-3-Clause
//
// Buffers: whose they are and when they travel; forwards without gradients.
#include <atomic>
#include <map>
#include <thread>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

struct CountsImpl : torch::nn::Module {
  CountsImpl() {
    weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
    count = register_buffer("count", torch::zeros({1}, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return weight * x + named_buffers()["count"]; }
  at::Tensor weight, count;
};
TORCH_MODULE(Counts);

TEST(DdpBuffersOf, RankZeroGoToAllBeforeForward) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    net->count.fill_(group->rank() + 5.0);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(net->count.item<double>(), 5.0);

    Counts alone;
    DistributedDataParallel without(alone, {.process_group = group, .broadcast_buffers = false});
    alone->count.fill_(group->rank() + 5.0);
    without.forward(x).sum().backward();
    EXPECT_EQ(alone->count.item<double>(), group->rank() + 5.0);
  });
}

TEST(DdpBuffersOf, RanksBeginEqualAndStayTheirOwnWhereForwardSendsNone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    net->count.fill_(group->rank() + 5.0);
    DistributedDataParallel ddp(net, {.process_group = group, .forward_sync_buffers = false});
    EXPECT_EQ(net->count.item<double>(), 5.0) << "construction sends them";
    net->count.fill_(group->rank() + 7.0);
    ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
    EXPECT_EQ(net->count.item<double>(), group->rank() + 7.0);

    Counts later;
    later->count.fill_(group->rank() + 5.0);
    DistributedDataParallel only_forward(
        later, {.process_group = group, .broadcast_buffers = false, .forward_sync_buffers = true});
    EXPECT_EQ(later->count.item<double>(), group->rank() + 5.0);
    only_forward.forward(torch::ones({1}, torch::kDouble)).sum().backward();
    EXPECT_EQ(later->count.item<double>(), 5.0);
  });
}

// A registered buffer stays the same tensor in libtorch; what it holds may be replaced.
TEST(DdpBuffersOf, ModulesThatGiveThemNewMemoryAreFoundAgain) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    net->count.set_data(torch::full({1}, group->rank() + 3.0, torch::kDouble));
    ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
    EXPECT_EQ(net->named_buffers()["count"].item<double>(), 3.0);
  });
}

TEST(DdpBuffersOf, ForwardWithoutGradientsCommunicatesNothing) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x).sum().backward();
    const auto before = group->sequence_number();
    {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i <= group->rank(); ++i) ddp.forward(x);  // not even equally often
    }
    EXPECT_EQ(group->sequence_number(), before);
    net->count.fill_(group->rank());
    ddp.sync_buffers();
    EXPECT_EQ(net->count.item<double>(), 0.0) << "by hand";
  });
}

// A target network's forward, say, between the other forward and its backward.
TEST(DdpBuffersOf, AForwardWithoutGradientsLeavesAPendingBackwardAlone) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      Scale net;
      DistributedDataParallel ddp(net, {.process_group = group, .static_graph = is_static});
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      for (int i = 0; i < 4; ++i) {
        ddp.zero_grad();
        const auto y = ddp.forward(x);
        {
          const torch::NoGradGuard no_grad;
          ddp.forward(x);
        }
        y.sum().backward();
        EXPECT_EQ(grad_of(net->weight), 1.5);
      }
    });
  }
}

TEST(DdpBuffersOf, ForwardsThatDoNotSynchroniseSendNone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    net->count.fill_(group->rank() + 5.0);
    {
      const auto local = ddp.no_sync();
      ddp.forward(x).sum().backward();
    }
    EXPECT_EQ(net->count.item<double>(), group->rank() + 5.0);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(net->count.item<double>(), 5.0);
  });
}

TEST(DdpBuffersOf, AHookRunsBeforeOrAfterForward) {
  struct Notes : torch::nn::Module {
    Notes() {
      weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
      register_buffer("some", torch::ones({1}, torch::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) {
      has_run = true;
      return weight * x;
    }
    at::Tensor weight;
    bool has_run = false;
  };
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(1, [when](const ProcessGroupPtr& group) {
      const auto net = std::make_shared<Notes>();
      DistributedDataParallel ddp(net, {.process_group = group});
      std::vector<bool> ran_before;
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& /*buffers*/) {
            ran_before.push_back(net->has_run);
            return std::vector<Future<void>>{};
          },
          when);
      ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
      EXPECT_THAT(ran_before, ::testing::ElementsAre(when == BufferSync::after_forward));
    });
  }
}

TEST(DdpBuffersOf, AHookMayReplaceTheBroadcast) {
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(2, [when](const ProcessGroupPtr& group) {
      Counts net;
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& buffers) {
            const auto& count = buffers.at("count");
            return std::vector<Future<void>>{all_reduce_async(*group, count).then([](const at::Tensor&) {})};
          },
          when);
      net->count.fill_(group->rank() + 1.0);
      const auto y = ddp.forward(torch::ones({1}, torch::kDouble));
      y.sum().backward();
      EXPECT_EQ(net->count.item<double>(), 3.0) << "the sum, which a broadcast would have overwritten";
    });
  }
}

TEST(DdpBuffersOf, WhatAHookReturnsIsAwaitedByBackward) {
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(2, [when](const ProcessGroupPtr& group) {
      Counts net;
      DistributedDataParallel ddp(net, {.process_group = group});
      bool fails = false;
      std::thread last;
      std::atomic<bool> has_gradients = false;
      net->weight.register_hook([&](const at::Tensor& gradient) {
        has_gradients = true;
        has_gradients.notify_all();
        return gradient;
      });
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& buffers) {
            Promise<void> promise;
            const auto future = promise.future();
            if (fails) {
              promise.set_exception(std::make_exception_ptr(Error("of the buffer hook")));
            } else {
              // Done by another thread, long after forward has returned.
              last = std::thread([&has_gradients, promise, count = buffers.at("count")]() mutable {
                has_gradients.wait(false);
                count.fill_(7.0);
                promise.set_value();
              });
            }
            return std::vector<Future<void>>{future};
          },
          when);
      ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
      EXPECT_EQ(net->count.item<double>(), 7.0);
      last.join();
      fails = true;
      const auto y = ddp.forward(torch::ones({1}, torch::kDouble));
      EXPECT_ERROR(Error, y.sum().backward(), "of the buffer hook");
    });
  }
}

}  // namespace
}  // namespace cohort::test
