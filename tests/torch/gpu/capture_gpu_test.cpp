// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Captured steps beside the same steps in eager mode: replayed by direct calls and as CUDA graphs, losses,
// parameters and buffers must be equal to the bit.
#include <ATen/Context.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/lr_schedule.h>
#include <cohort/torch/optim.h>
#include <gmock/gmock.h>
#include <torch/cuda.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "backends/nccl/gpu/gpu_world.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using ::testing::HasSubstr;
using Sequential = torch::nn::Sequential;

const at::Device gpu(at::kCUDA, 0);
constexpr int steps = 12;

enum class Mode { eager, direct, graph };

class CaptureOnGpu : public OnTheGpu {};
using CaptureOn = OnTheGpuOfSize;

/// In a process of its own, as all that uses CUDA.
void on_gpu(const std::function<void()>& body) {
  on_one_gpu(1, [&](int, const StorePtr&) {
    at::globalContext().setDeterministicCuDNN(true);
    body();
  });
}

struct Trained {
  std::vector<at::Tensor> losses{};
  std::vector<at::Tensor> state{};
  std::string explanation{};
};

void expect_equal(const Trained& captured, const Trained& eager) {
  ASSERT_EQ(captured.losses.size(), eager.losses.size());
  for (std::size_t i = 0; i < eager.losses.size(); ++i) {
    EXPECT_TRUE(at::equal(captured.losses[i], eager.losses[i]))
        << "loss of step " << i << ": " << captured.losses[i].item<double>() - eager.losses[i].item<double>();
  }
  for (std::size_t i = 0; i < eager.state.size(); ++i) {
    EXPECT_TRUE(at::equal(captured.state[i], eager.state[i])) << "parameter or buffer " << i;
  }
}

at::Tensor random_on_gpu(std::uint64_t seed, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator).to(gpu);
}

struct Task {
  std::function<Sequential()> net;
  std::vector<std::int64_t> in;
  std::vector<std::int64_t> out;
};

const Task mlp{.net = [] { return Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4)); },
               .in = {5, 8},
               .out = {5, 4}};
const Task convolution{.net =
                           [] {
                             return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)),
                                               torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Dropout(0.3),
                                               torch::nn::Flatten(), torch::nn::Linear(4 * 36, 3));
                           },
                       .in = {4, 2, 6, 6},
                       .out = {4, 3}};

/// `between(optimizer, i)` runs after step i.
template <class Optimizer, class Options, class InStep, class Between>
Trained train(Mode mode, const Task& task, const Options& options, const InStep& make_in_step, const Between& between) {
  torch::manual_seed(1);
  auto net = task.net();
  net->to(gpu);
  Optimizer optimizer(net->parameters(), options);
  auto in_step = make_in_step(optimizer);
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    optimizer.step();
    in_step();
    return loss;
  };
  auto step = capture(body, {.watch = {net, optimizer}, .cuda_graph = mode == Mode::graph});
  torch::manual_seed(2);
  Trained result;
  for (int i = 0; i < steps; ++i) {
    const auto x = random_on_gpu(static_cast<std::uint64_t>(100 + i), task.in);
    const auto y = random_on_gpu(static_cast<std::uint64_t>(900 + i), task.out);
    result.losses.push_back(mode == Mode::eager ? body(x, y).detach() : step(x, y));
    between(optimizer, i);
  }
  if (mode != Mode::eager) result.explanation = step.explain();
  for (const auto& each : net->parameters()) result.state.push_back(each.detach().clone());
  for (const auto& each : net->buffers()) result.state.push_back(each.detach().clone());
  return result;
}

const auto nothing_in_step = [](auto& /*optimizer*/) { return [] {}; };
const auto nothing_between = [](auto& /*optimizer*/, int /*step*/) {};

template <class Optimizer, class Options, class InStep, class Between>
std::string expect_same_in_all_modes(const Task& task, const Options& options, const InStep& in_step,
                                     const Between& between) {
  const auto eager = train<Optimizer>(Mode::eager, task, options, in_step, between);
  {
    SCOPED_TRACE("direct calls");
    expect_equal(train<Optimizer>(Mode::direct, task, options, in_step, between), eager);
  }
  SCOPED_TRACE("CUDA graph");
  const auto graph = train<Optimizer>(Mode::graph, task, options, in_step, between);
  expect_equal(graph, eager);
  EXPECT_THAT(graph.explanation, HasSubstr("Replayed as a CUDA graph"));
  return graph.explanation;
}

TEST_F(CaptureOnGpu, TrainsAnMlpWithMomentum) {
  on_gpu([] {
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
    const auto text = expect_same_in_all_modes<torch::optim::SGD>(mlp, options, nothing_in_step, nothing_between);
    EXPECT_THAT(text, Not(HasSubstr("after it")));
    expect_same_in_all_modes<optim::SGD>(mlp, options, nothing_in_step, nothing_between);
  });
}

TEST_F(CaptureOnGpu, TrainsAConvolutionWithBatchNormAndDropout) {
  on_gpu([] {
    expect_same_in_all_modes<optim::SGD>(convolution, torch::optim::SGDOptions(0.05), nothing_in_step, nothing_between);
  });
}

TEST_F(CaptureOnGpu, TrainsWithAdamAndASchedule) {
  on_gpu([] {
    const auto schedule = [](torch::optim::Optimizer& optimizer) {
      return [schedule = std::make_shared<optim::LambdaLR>(optimizer, optim::warm_up(3, optim::cosine(20, 0.1)))] {
        schedule->step();
      };
    };
    const auto text = expect_same_in_all_modes<optim::AdamW>(mlp, torch::optim::AdamWOptions(0.01).weight_decay(0.1),
                                                             schedule, nothing_between);
    EXPECT_THAT(text, HasSubstr("numbers of the host that change"));
    expect_same_in_all_modes<optim::Adam>(convolution, torch::optim::AdamOptions(0.01).amsgrad(true), schedule,
                                          nothing_between);
  });
}

/// The learning rate is part of the graph until it changes.
TEST_F(CaptureOnGpu, FollowsARateThatChangesLate) {
  on_gpu([] {
    const auto between = [](torch::optim::Optimizer& optimizer, int i) {
      if (i >= 7) optimizer.param_groups()[0].options().set_lr(0.1 / i);
    };
    const auto text = expect_same_in_all_modes<optim::SGD>(mlp, torch::optim::SGDOptions(0.1).momentum(0.9),
                                                           nothing_in_step, between);
    EXPECT_THAT(text, HasSubstr("numbers of the host that change"));
  });
}

/// Gradients of zero in the memory that they have, and gradients that add up over two steps.
TEST_F(CaptureOnGpu, GradientsAreWhereTheyBelong) {
  on_gpu([] {
    for (const bool is_zeroed : {true, false}) {
      torch::manual_seed(1);
      torch::nn::Linear net(4, 2);
      net->to(gpu);
      auto step = capture(
          [&](const at::Tensor& x) {
            if (is_zeroed) net->zero_grad(false);
            auto loss = net->forward(x).pow(2).sum();
            loss.backward();
            return loss;
          },
          {.watch = {net}});
      at::Tensor sum = at::zeros({2, 4}, gpu);
      for (int i = 0; i < 8; ++i) {
        const auto x = random_on_gpu(static_cast<std::uint64_t>(i), {3, 4});
        const auto weight = net->weight.detach().clone().requires_grad_();
        torch::nn::functional::linear(x, weight, net->bias.detach()).pow(2).sum().backward();
        sum = is_zeroed ? weight.grad() : sum + weight.grad();
        step(x);
        EXPECT_TRUE(at::allclose(net->weight.grad(), sum)) << i;
      }
      EXPECT_THAT(step.explain(), HasSubstr("Replayed as a CUDA graph"));
    }
  });
}

TEST_F(CaptureOnGpu, ResultsAreCopiesAndArgumentsAreWritten) {
  on_gpu([] {
    auto step = capture([](const at::Tensor& x) {
      auto y = x * 2;
      x.add_(1);
      return y + 1;
    });
    std::vector<at::Tensor> results;
    for (int i = 0; i < 6; ++i) {
      const auto x = at::full({3}, i, gpu);
      results.push_back(step(x));
      EXPECT_TRUE(at::equal(x, at::full({3}, i + 1, gpu))) << i;
    }
    for (int i = 0; i < 6; ++i) {
      EXPECT_TRUE(at::equal(results[static_cast<std::size_t>(i)], at::full({3}, 2 * i + 1, gpu))) << i;
    }
    EXPECT_THAT(step.explain(), HasSubstr("Replayed as a CUDA graph"));
  });
}

TEST_F(CaptureOnGpu, RecordsAnewForAnotherBatchSize) {
  on_gpu([] {
    torch::nn::Linear net(4, 2);
    net->to(gpu);
    auto step = capture([&](const at::Tensor& x) { return net->forward(x).sum(); }, {.watch = {net}});
    for (int i = 0; i < 16; ++i) {
      const auto x = random_on_gpu(static_cast<std::uint64_t>(i), {i % 2 == 0 ? 3 : 7, 4});
      EXPECT_TRUE(at::equal(step(x), net->forward(x).sum())) << i;
    }
    EXPECT_EQ(step.recordings(), 2U);
    const auto text = step.explain();
    EXPECT_NE(text.find("Replayed as a CUDA graph"), text.rfind("Replayed as a CUDA graph")) << text;
  });
}

TEST_F(CaptureOnGpu, SaysWhatAGraphCannotContain) {
  on_gpu([] {
    const auto explanation = [](auto function, const at::Tensor& x, const at::Tensor& expected) {
      auto step = capture(function);
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(step(x).cpu(), expected.cpu())) << i;
      return step.explain();
    };
    const auto x = at::arange(6, at::device(gpu).dtype(at::kFloat));
    EXPECT_THAT(explanation([](const at::Tensor& host) { return host.to(gpu) * 2; }, x.cpu(), x * 2),
                AllOf(HasSubstr("direct calls"), HasSubstr("on the cpu")));
    EXPECT_THAT(explanation([](const at::Tensor& t) { return t * 2; }, x.narrow(0, 1, 1).expand({3}), at::full({3}, 2)),
                AllOf(HasSubstr("direct calls"), HasSubstr("expanded")));
    // A copy to the host at the end comes after the graph.
    EXPECT_THAT(
        explanation([](const at::Tensor& t) { return (t * 2 + 1).exp().log().cpu(); }, x, (x * 2 + 1).exp().log()),
        AllOf(HasSubstr("CUDA graph of"), HasSubstr("1 calls after it")));
  });
}

/// Twice the tensor, and the host waits for the device, which a capture does not allow.
at::Tensor doubled_and_awaited(const at::Tensor& x) {
  torch::cuda::synchronize();
  return x * 2;
}

TORCH_LIBRARY(cohort_gpu_test, library) {
  library.def("doubled_and_awaited(Tensor x) -> Tensor");
  library.impl("doubled_and_awaited", c10::DispatchKey::CompositeExplicitAutograd, doubled_and_awaited);
}

/// A capture fails in the middle, behind random numbers: everything goes on as if it had not been tried.
TEST_F(CaptureOnGpu, GoesOnAfterAFailedCapture) {
  on_gpu([] {
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("cohort_gpu_test::doubled_and_awaited", "")
                        .typed<at::Tensor(const at::Tensor&)>();
    const auto body = [&](const at::Tensor& x) { return op.call(at::dropout(x, 0.5, true)) + at::rand_like(x); };
    const auto x = at::ones({64}, gpu);
    torch::manual_seed(3);
    std::vector<at::Tensor> eager;
    for (int i = 0; i < 6; ++i) eager.push_back(body(x));
    torch::manual_seed(3);
    auto step = capture(body);
    for (const auto& each : eager) EXPECT_TRUE(at::equal(step(x), each));
    EXPECT_THAT(step.explain(), AllOf(HasSubstr("direct calls"), HasSubstr("cannot be captured")));
    // The next one can be captured.
    auto other = capture([](const at::Tensor& y) { return (y * 3).sqrt() + 1; });
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(other(x), (x * 3).sqrt() + 1));
    EXPECT_THAT(other.explain(), HasSubstr("Replayed as a CUDA graph"));
  });
}

Trained train_ddp(const ProcessGroupPtr& group, Mode mode, DdpOptions options) {
  torch::manual_seed(1);
  Sequential net(torch::nn::Linear(8, 64), torch::nn::BatchNorm1d(64), torch::nn::ReLU(), torch::nn::Linear(64, 4));
  net->to(gpu);
  options.process_group = group;
  DistributedDataParallel ddp(net, options);
  optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}, .cuda_graph = mode == Mode::graph});
  Trained result;
  for (int i = 0; i < steps; ++i) {
    const auto seed = static_cast<std::uint64_t>(100 * group->rank() + i);
    const auto x = random_on_gpu(seed, {6, 8});
    const auto y = random_on_gpu(seed + 50, {6, 4});
    result.losses.push_back(mode == Mode::eager ? body(x, y).detach() : step(x, y));
  }
  for (const auto& each : net->parameters()) result.state.push_back(each.detach().clone());
  for (const auto& each : net->buffers()) result.state.push_back(each.detach().clone());
  if (mode != Mode::eager) {
    result.explanation = step.explain();
    std::size_t collectives = 0;
    for (const auto& node : step.graph().nodes) collectives += node.kind == GraphNode::Kind::collective ? 1U : 0U;
    EXPECT_GE(collectives, 2U) << step.graph();
  }
  torch::cuda::synchronize();
  return result;
}

/// DDP's collectives are issued on threads of autograd's engine.
TEST_P(CaptureOn, GpusTrainsUnderDataParallelism) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    std::vector<DdpOptions> all{{.bucket_cap_mb = 0.001}};
    if (group->size() == 1) all.push_back({.bucket_cap_mb = 0.001, .gradient_as_bucket_view = false});
    for (const auto& options : all) {
      const auto eager = train_ddp(group, Mode::eager, options);
      expect_equal(train_ddp(group, Mode::direct, options), eager);
      const auto graph = train_ddp(group, Mode::graph, options);
      expect_equal(graph, eager);
      EXPECT_THAT(graph.explanation, GetParam().backend == "nccl" ? HasSubstr("Replayed as a CUDA graph")
                                                                  : HasSubstr("works on the host"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, CaptureOn,
                         ::testing::Values(GpuRanks{"nccl", 1}, GpuRanks{"nccl", 2}, GpuRanks{"gloo", 2}),
                         [](const auto& each) { return each.param.backend + std::to_string(each.param.size); });

/// A rank stops replaying; what the other has launched must not wait for it forever.
TEST_F(CaptureOnGpu, AMissedDeadlineOfAGraphIsAnErrorInTime) {
  on_one_gpu(2, [](int rank, const StorePtr& store) {
    const auto group = join_gpu(store, rank, 2, std::chrono::seconds(20));
    auto step = capture([&](const at::Tensor& x) {
      auto y = x * 2;
      group->all_reduce(buffer_of(y), {.stream = current_stream(y)});
      return y + 1;
    });
    const auto x = at::ones({4}, gpu);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(step(x), at::full({4}, 5.0F, gpu))) << i;
    EXPECT_THAT(step.explain(), HasSubstr("Replayed as a CUDA graph"));
    if (rank == 0) {
      const auto late = step(x);
      const auto begin = std::chrono::steady_clock::now();
      torch::cuda::synchronize();  // ends when the group gives up
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
      EXPECT_ERROR(OperationTimeoutError, step(x), "within");
    }
    // The other rank's process must exist until then, or this would be a lost peer.
    store->add("done", 1);
    while (store->add("done", 0) < 2) std::this_thread::yield();
  });
}

}  // namespace
}  // namespace cohort::test
