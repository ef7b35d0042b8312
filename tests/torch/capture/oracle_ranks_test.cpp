// SPDX-License-Identifier: BSD-3-Clause
//
// Fifty captured steps of several ranks beside the same steps in eager mode: data parallelism, accumulation, tensor
// parallelism, uneven inputs.
#include <cohort/torch/capture.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/join.h>
#include <cohort/torch/lr_schedule.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/parallelize.h>
#include <torch/torch.h>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

torch::nn::Sequential make_layers(double dropout = 0) {
  using namespace torch::nn;
  Sequential net(Linear(6, 12), BatchNorm1d(12), ReLU(), Linear(12, 12), Tanh());
  if (dropout > 0) net->push_back(Dropout(dropout));
  net->push_back(Linear(12, 3));
  Numbers(7).fill(net->parameters());
  return net;
}

/// Small buckets, so that there are several.
DdpOptions several_buckets(const ProcessGroupPtr& group, double cap_mb = 0.0005) {
  return {.process_group = group, .bucket_cap_mb = cap_mb};
}

/// Fifty steps of any kind: `body` is the step, `around` calls it or the captured one.
template <class Step, class Body>
Trained run_steps(bool is_captured, Step& step, const Body& body, int rank) {
  Trained result;
  Numbers numbers(rank);
  for (int i = 0; i < steps; ++i) {
    const auto x = numbers({5, 6});
    const auto y = numbers({5, 3});
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  }
  return result;
}

/// With fuse_collectives, there are so many buckets that several are under way at once.
Trained train_ddp(const ProcessGroupPtr& group, bool is_captured, double dropout, const PassOptions& passes = {}) {
  torch::nn::Sequential net = make_layers(dropout);
  DistributedDataParallel ddp(net, several_buckets(group, passes.fuse_collectives ? 0.0001 : 0.0005));
  optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  optim::LambdaLR schedule(optimizer, optim::warm_up(5, optim::cosine(40, 0.1)));
  int runs = 0;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++runs;
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    clip_grad_norm_(ddp.parameters(), 0.5);
    optimizer.step();
    schedule.step();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}, .passes = passes});
  auto result = run_steps(is_captured, step, body, group->rank());
  result.runs = runs;
  result.left = left_in(*net);
  if (is_captured) {
    EXPECT_LE(runs, 6) << step.explain();
    if (passes.fuse_collectives) {
      EXPECT_GE(count_nodes(step.graph(), "all_reduce_coalesced"), 1U) << step.explain() << step.graph();
    } else {
      EXPECT_GE(count_nodes(step.graph(), "all_reduce"), 2U) << "DDP's buckets";
    }
  }
  return result;
}

class CapturedDataParallelism : public testing::TestWithParam<Ranks> {};

TEST_P(CapturedDataParallelism, HasTheBitsOfEagerTraining) {
  GetParam().run([](const ProcessGroupPtr& group) {
    at::set_num_threads(1);
    // Ranks that are threads share libtorch's generator: what dropout draws depends on which of them is first.
    const double dropout = GetParam().are_processes() ? 0.2 : 0;
    torch::manual_seed(static_cast<std::uint64_t>(group->rank()));
    const auto captured = train_ddp(group, true, dropout);
    torch::manual_seed(static_cast<std::uint64_t>(group->rank()));
    expect_same_training(captured, train_ddp(group, false, dropout));
  });
}

INSTANTIATE_TEST_SUITE_P(Oracle, CapturedDataParallelism,
                         testing::Values(threads(1), threads(2), threads(4), processes(2)),
                         testing::PrintToStringParamName());

/// A pass that changes which collectives are issued does not change what they compute.
TEST(CapturedDataParallelismWithPasses, HasTheBitsOfEagerTraining) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const PassOptions passes{.fuse_collectives = true};
    const auto captured = train_ddp(group, true, 0, passes);
    expect_same_training(captured, train_ddp(group, false, 0, passes));
  });
}

/// Three backwards for each step: two without communication. Each way to go is one recording.
Trained train_accumulating(const ProcessGroupPtr& group, bool is_captured, bool sets_to_none) {
  auto net = make_layers();
  DistributedDataParallel ddp(net, several_buckets(group));
  optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Trained result;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y, bool is_last) {
    ++result.runs;
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    if (is_last) {
      optimizer.step();
      optimizer.zero_grad(sets_to_none);
    }
    return loss;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}});
  Numbers numbers(group->rank());
  for (int i = 0; i < steps; ++i) {
    const auto x = numbers({5, 6});
    const auto y = numbers({5, 3});
    const bool is_last = i % 3 == 2;
    std::optional<ddp::NoSync> scope;
    if (!is_last) scope.emplace(ddp.no_sync());
    result.losses.push_back(is_captured ? step(x, y, is_last) : body(x, y, is_last).detach());
  }
  result.left = left_in(*net);
  if (is_captured) {
    EXPECT_LE(result.runs, 14) << step.explain();
    EXPECT_GE(step.recordings(), 2U) << step.explain();
    EXPECT_THAT(step.explain(), testing::HasSubstr("argument 3 was false and is true"));
  }
  return result;
}

TEST(CapturedAccumulation, HasTheBitsOfEagerTraining) {
  for (const int ranks : {1, 2, 3}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      for (const bool sets_to_none : {true, false}) {
        expect_same_training(train_accumulating(group, true, sets_to_none),
                             train_accumulating(group, false, sets_to_none));
      }
    });
  }
}

/// The same inside of one step.
Trained train_in_parts(const ProcessGroupPtr& group, bool is_captured) {
  auto net = make_layers();
  DistributedDataParallel ddp(net, several_buckets(group));
  optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05));
  int runs = 0;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++runs;
    optimizer.zero_grad();
    at::Tensor first;
    {
      const auto scope = ddp.no_sync();
      first = torch::mse_loss(ddp.forward(x.narrow(0, 0, 2)), y.narrow(0, 0, 2));
      first.backward();
    }
    auto second = torch::mse_loss(ddp.forward(x.narrow(0, 2, 3)), y.narrow(0, 2, 3));
    second.backward();
    optimizer.step();
    return first.detach() + second.detach();
  };
  auto step = capture(body, {.watch = {ddp, optimizer}});
  auto result = run_steps(is_captured, step, body, group->rank());
  result.runs = runs;
  result.left = left_in(*net);
  if (is_captured) {
    EXPECT_LE(runs, 6) << step.explain();
  }
  return result;
}

TEST(CapturedAccumulation, MayBeInsideOfTheStep) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    expect_same_training(train_in_parts(group, true), train_in_parts(group, false));
  });
}

Trained train_on_mesh(const ProcessGroupPtr& group, bool is_captured) {
  const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"}, {.process_group = group});
  using namespace torch::nn;
  Sequential net(Linear(6, 12), ReLU(), Linear(12, 12), Tanh(), Linear(12, 3));
  Numbers(7).fill(net->parameters());
  parallelize_module(*net, mesh["tp"], {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}, {"4", ColwiseParallel()}});
  DistributedDataParallel ddp(net, {.device_mesh = mesh["dp"], .bucket_cap_mb = 0.0005});
  optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.01));
  int runs = 0;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++runs;
    optimizer.zero_grad();
    const at::Tensor input = DTensor::from_local(x, mesh["tp"], {Replicate()});
    const auto output = ddp.forward(input);
    auto loss = torch::mse_loss(output, DTensor::from_local(y, mesh["tp"], {Replicate()}));
    loss.backward();
    optimizer.step();
    return DTensor(loss).full_tensor();
  };
  auto step = capture(body, {.watch = {ddp, optimizer}});
  auto result = run_steps(is_captured, step, body, mesh.local_rank("dp"));
  result.runs = runs;
  result.left = copies_of(ddp.parameters());
  if (is_captured) {
    EXPECT_LE(runs, 6) << step.explain();
    const auto& groups = summarize(step.graph());
    EXPECT_TRUE(
        std::any_of(groups.begin(), groups.end(), [&](const auto& it) { return it.group == mesh.group("dp")->id(); }));
    EXPECT_TRUE(
        std::any_of(groups.begin(), groups.end(), [&](const auto& it) { return it.group == mesh.group("tp")->id(); }));
  }
  return result;
}

TEST(CapturedTensorParallelism, HasTheBitsOfEagerTraining) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    expect_same_training(train_on_mesh(group, true), train_on_mesh(group, false));
  });
}

/// Parameters, gradients and the optimizer's state are distributed tensors; the batch is sharded over "dp".
Trained train_distributed(const ProcessGroupPtr& group, bool is_captured) {
  const auto mesh = init_device_mesh("cpu", {2, group->size() / 2}, {"dp", "tp"}, {.process_group = group});
  using namespace torch::nn;
  Sequential net(Linear(6, 12), ReLU(), Linear(12, 3));
  Numbers(7).fill(net->parameters());
  distribute_module(*net, mesh, [](const std::string& name, const at::Tensor&) {
    if (name == "0.weight" || name == "0.bias") return Placements{Replicate(), Shard(0)};
    return name == "2.weight" ? Placements{Replicate(), Shard(1)} : Placements{Replicate(), Replicate()};
  });
  optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  int runs = 0;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++runs;
    optimizer.zero_grad();
    const at::Tensor input = DTensor::from_local(x, mesh, {Shard(0), Replicate()});
    const auto loss = torch::mse_loss(net->forward(input), DTensor::from_local(y, mesh, {Shard(0), Replicate()}));
    loss.backward();
    optimizer.step();
    return DTensor(loss).full_tensor();
  };
  auto step = capture(body, {.watch = {net, optimizer}});
  auto result = run_steps(is_captured, step, body, mesh.local_rank("dp"));
  result.runs = runs;
  for (const auto& each : net->parameters()) result.left.push_back(DTensor(each).to_local().detach().clone());
  if (is_captured) {
    EXPECT_LE(runs, 6) << step.explain();
  }
  return result;
}

TEST(CapturedTensorParallelism, OfDistributedParametersHasTheBitsOfEagerTraining) {
  for (const int ranks : {2, 4}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      expect_same_training(train_distributed(group, true), train_distributed(group, false));
    });
  }
}

/// The last batch of an epoch is smaller on one rank: that one records, while the other replays.
Trained train_uneven(const ProcessGroupPtr& group, bool is_captured) {
  auto net = make_layers();
  DistributedDataParallel ddp(net, several_buckets(group));
  optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05));
  Trained result;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++result.runs;
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp.forward(x), y);
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}});
  Numbers numbers(group->rank());
  for (int i = 0; i < steps; ++i) {
    const std::int64_t size = group->rank() == 1 && i % 10 == 9 ? 3 : 5;
    const auto x = numbers({size, 6});
    const auto y = numbers({size, 3});
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  }
  result.left = left_in(*net);
  if (is_captured) {
    EXPECT_LE(result.runs, 8) << step.explain();
    if (group->rank() == 1) {
      EXPECT_THAT(step.explain(), testing::HasSubstr("argument 1"));
    }
  }
  return result;
}

TEST(CapturedUnevenInputs, MayBeASmallerBatchOnOneRank) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    expect_same_training(train_uneven(group, true), train_uneven(group, false));
  });
}

TEST(CapturedUnevenInputs, AreRefusedInAJoin) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto net = make_layers();
    DistributedDataParallel ddp(net, several_buckets(group));
    auto step = capture(
        [&](const at::Tensor& x) {
          auto loss = ddp.forward(x).sum();
          loss.backward();
          return loss;
        },
        {.watch = {ddp}});
    EXPECT_ERROR(CaptureError, join({&ddp}, [&] { step(at::ones({5, 6})); }), "join");
  });
}

}  // namespace
}  // namespace cohort::test
