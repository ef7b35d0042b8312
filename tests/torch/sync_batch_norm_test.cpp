// SPDX-License-Identifier: BSD-3-Clause
//
// SyncBatchNorm against torch::batch_norm on the whole batch.
#include <cohort/current_group.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/sync_batch_norm.h>
#include <cohort/torch/tensor.h>
#include <torch/torch.h>

#include <numeric>
#include <sstream>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Rows of a batch for each rank.
struct Share {
  Sizes rows;
  Sizes rest;  // channels and what comes after
  at::ScalarType type = at::kDouble;
  bool channels_last = false;

  int ranks() const { return static_cast<int>(rows.size()); }
  std::int64_t total() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  at::Tensor random(std::uint64_t seed) const {
    auto sizes = rest;
    sizes.insert(sizes.begin(), total());
    // Channels with means far from 0, which makes bad variances visible.
    auto generator = at::detail::createCPUGenerator(seed);
    auto all = at::randn(sizes, generator, at::kDouble).mul_(2).add_(5).to(type);
    return channels_last ? all.contiguous(at::MemoryFormat::ChannelsLast) : all;
  }
  at::Tensor of(const at::Tensor& whole, int rank) const {
    std::int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += rows[static_cast<std::size_t>(r)];
    auto mine = whole.narrow(0, first, rows[static_cast<std::size_t>(rank)]).detach().clone();
    return channels_last ? mine.contiguous(at::MemoryFormat::ChannelsLast) : mine;
  }
};

struct Outcome {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
};

/// Two steps of `norm`, with gradients that are not the same everywhere; the second's outcome.
template <class Norm>
Outcome run(Norm& norm, const at::Tensor& first, const at::Tensor& second, const at::Tensor& gradient) {
  norm->forward(first);
  const auto input = second.detach().requires_grad_();
  norm->zero_grad();
  const auto output = norm->forward(input);
  output.backward(gradient);
  return {output.detach(),
          input.grad(),
          norm->weight.defined() ? norm->weight.grad() : at::Tensor(),
          norm->bias.defined() ? norm->bias.grad() : at::Tensor(),
          norm->running_mean,
          norm->running_var};
}

void give_values(at::Tensor weight, at::Tensor bias) {
  const torch::NoGradGuard no_grad;
  weight.copy_(at::arange(1, weight.numel() + 1).div(3));
  bias.copy_(at::arange(bias.numel()).sub(1));
}

/// The whole batch, normalised by hand-written plain batch norm of libtorch, 2-D view for any dimension.
struct WholeBatch {
  at::Tensor weight, bias, running_mean, running_var;
  double momentum = 0.1;
  explicit WholeBatch(std::int64_t channels, at::ScalarType type)
      : weight(at::ones({channels}, type)),
        bias(at::zeros({channels}, type)),
        running_mean(at::zeros({channels}, type)),
        running_var(at::ones({channels}, type)) {
    give_values(weight, bias);
    weight.requires_grad_();
    bias.requires_grad_();
  }
  at::Tensor forward(const at::Tensor& x) const {
    return at::batch_norm(x, weight, bias, running_mean, running_var, true, momentum, 1e-5, false);
  }
  void zero_grad() {}
  WholeBatch* operator->() { return this; }
};

void expect_close(const at::Tensor& mine, const at::Tensor& expected, const char* what) {
  const double tolerance = mine.scalar_type() == at::kDouble ? 1e-10 : 2e-5;
  ASSERT_EQ(mine.sizes(), expected.sizes()) << what;
  EXPECT_EQ(mine.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(at::allclose(mine, expected, tolerance, tolerance)) << what << "\n" << mine << "\n" << expected;
}

/// `make` gives a layer for this many channels over the group; its forward must be as the whole batch's.
template <class Make>
void expect_like_whole_batch(const Share& share, Make make) {
  const auto first = share.random(1);
  const auto second = share.random(2);
  const auto gradient = share.random(3);
  WholeBatch whole(share.rest[0], share.type);
  const auto expected = run(whole, first, second, gradient);

  with_torch_threads(share.ranks(), [&](const ProcessGroupPtr& group) {
    const auto rank = group->rank();
    auto norm = make(share.rest[0], group);
    norm->to(share.type);
    give_values(norm->weight, norm->bias);
    const auto mine = run(norm, share.of(first, rank), share.of(second, rank), share.of(gradient, rank));
    expect_close(mine.output, share.of(expected.output, rank), "output");
    if (share.channels_last) {
      EXPECT_TRUE(mine.output.is_contiguous(at::MemoryFormat::ChannelsLast));
    }
    expect_close(mine.input_gradient, share.of(expected.input_gradient, rank), "input gradient");
    expect_close(mine.running_mean, expected.running_mean, "running mean");
    expect_close(mine.running_var, expected.running_var, "running variance");
    // Gradients of parameters are the rank's own: their sum is the whole batch's.
    auto weight = mine.weight_gradient.clone();
    auto bias = mine.bias_gradient.clone();
    const auto own = (share.of(gradient, rank)).sum(at::IntArrayRef(Sizes{0})).reshape({share.rest[0], -1}).sum(1);
    expect_close(bias, own, "own bias gradient");
    group->all_reduce(weight);
    group->all_reduce(bias);
    expect_close(weight, expected.weight_gradient, "weight gradient");
    expect_close(bias, expected.bias_gradient, "bias gradient");
  });
}

SyncBatchNorm make_sync(std::int64_t channels, const ProcessGroupPtr& group) {
  return SyncBatchNorm(SyncBatchNormOptions(channels).process_group(group));
}

TEST(SyncBatchNormTest, IsBatchNormOverTheWholeBatch) {
  for (const auto& share : std::vector<Share>{
           {.rows = {4, 4}, .rest = {3}},                                  // 2-D
           {.rows = {2, 2, 2}, .rest = {3, 5}},                            // 3-D
           {.rows = {3, 1}, .rest = {4, 3, 2}},                            // uneven
           {.rows = {2, 3, 1}, .rest = {2, 3, 2, 2}, .type = at::kFloat},  // 5-D
           {.rows = {5, 0}, .rest = {3, 2, 2}},                            // one without input
           {.rows = {0, 4, 2}, .rest = {3}},
           {.rows = {1, 1}, .rest = {3}},  // too few for a rank alone
           {.rows = {4, 2}, .rest = {8, 3, 3}, .type = at::kFloat},
           {.rows = {2, 3}, .rest = {4, 3, 5}, .type = at::kDouble, .channels_last = true},
           {.rows = {0, 3}, .rest = {4, 3, 5}, .type = at::kFloat, .channels_last = true},
       }) {
    SCOPED_TRACE(::testing::Message() << share.rows.size() << " ranks, " << at::IntArrayRef(share.rest));
    expect_like_whole_batch(share, make_sync);
  }
}

TEST(SyncBatchNormTest, HalvesAreNormalisedInFloat) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const Share share{.rows = {6, 6}, .rest = {3, 4}};
    const auto whole = share.random(1).to(at::kBFloat16);
    auto norm = make_sync(3, group);
    const auto mine = norm->forward(share.of(whole, group->rank()));
    EXPECT_EQ(mine.scalar_type(), at::kBFloat16);
    const auto expected = at::batch_norm(whole.to(at::kFloat), {}, {}, {}, {}, true, 0.1, 1e-5, false);
    EXPECT_TRUE(at::allclose(mine.to(at::kFloat), share.of(expected, group->rank()), 1e-2, 1e-2));
  });
}

TEST(SyncBatchNormTest, EvalModeSendsNothingAndUsesTheRunningStatistics) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto norm = make_sync(3, group);
    norm->forward(at::randn({4, 3}));
    norm->eval();
    const auto before = group->sequence_number();
    if (group->rank() == 0) {  // the other rank does not even come
      const auto x = at::randn({2, 3});
      const auto expected = (x - norm->running_mean) / (norm->running_var + 1e-5).sqrt();
      EXPECT_TRUE(at::allclose(norm->forward(x), expected, 1e-4, 1e-5));
    }
    EXPECT_EQ(group->sequence_number(), before);
  });
}

TEST(SyncBatchNormTest, NoMomentumIsTheMeanOverAllBatches) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const Share share{.rows = {3, 2}, .rest = {2}};
    SyncBatchNorm norm(
        SyncBatchNormOptions(2).momentum(SyncBatchNormOptions::Momentum()).affine(false).process_group(group));
    norm->to(at::kDouble);
    std::vector<at::Tensor> means;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const auto whole = share.random(step);
      norm->forward(share.of(whole, group->rank()));
      means.push_back(whole.mean(0));
    }
    expect_close(norm->running_mean, at::stack(means).mean(0), "mean of means");
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 3);
  });
}

TEST(SyncBatchNormTest, WithoutStatisticsTheBatchIsNormalisedInEvalModeToo) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const Share share{.rows = {3, 2}, .rest = {2}};
    SyncBatchNorm norm(SyncBatchNormOptions(2).track_running_stats(false).affine(false).process_group(group));
    norm->eval();
    const auto whole = share.random(1);
    const auto expected = at::batch_norm(whole, {}, {}, {}, {}, true, 0, 1e-5, false);
    expect_close(norm->forward(share.of(whole, group->rank())), share.of(expected, group->rank()), "output");
  });
}

TEST(SyncBatchNormTest, NobodyHasInputAndNothingChanges) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto norm = make_sync(3, group);
    const auto x = at::empty({0, 3, 2}).requires_grad_();
    const auto y = norm->forward(x);
    y.sum().backward();
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({3})));
    EXPECT_TRUE(at::equal(norm->running_var, at::ones({3})));
    EXPECT_TRUE(at::equal(norm->weight.grad(), at::zeros({3})));
  });
}

TEST(SyncBatchNormTest, TakesTheCurrentGroupAndIsPlainWithoutOne) {
  {
    SyncBatchNorm plain(3);
    EXPECT_EQ(sync_batch_norm_group(*plain), nullptr);
    const auto x = at::randn({4, 3});
    EXPECT_TRUE(at::allclose(plain->forward(x), at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false), 1e-5, 1e-6));
  }
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const ProcessGroupGuard scope(group);
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3).eps(1e-3).affine(false));
    EXPECT_EQ(sync_batch_norm_group(*norm), group);
    EXPECT_EQ(norm->options.eps(), 1e-3);
    std::stringstream text;
    text << norm;
    EXPECT_THAT(text.str(), ::testing::HasSubstr("SyncBatchNorm(3, eps=0.001"));
  });
}

TEST(SyncBatchNormTest, RefusesWhatItCannotNormalise) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto norm = make_sync(3, group);
    EXPECT_ERROR(ValueError, norm->forward(at::randn({3})), "1 dimension");
    EXPECT_ERROR(ValueError, norm->forward(at::randn({4, 0})), "no channels");
    EXPECT_ERROR(ValueError, norm->forward(at::randn({4, 5})), "3 channels got input of 5");
    EXPECT_ERROR(ValueError, make_sync(0, group), "at least 1");
    EXPECT_EQ(group->sequence_number(), 0U);
    const auto y = norm->forward(at::randn({4, 3}).requires_grad_());
    EXPECT_ERROR(NotSupportedError, y.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true),
                 "second derivatives");
  });
}

TEST(SyncBatchNormTest, InputWithoutGradientNeedsNoSumInBackward) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto norm = make_sync(3, group);
    const auto y = norm->forward(at::randn({4, 3}));
    const auto before = group->sequence_number();
    y.square().sum().backward();
    EXPECT_EQ(group->sequence_number(), before);
    EXPECT_TRUE(norm->weight.grad().defined());
  });
}

// --- conversion ------------------------------------------------------------------------------------------------------

/// As people write them: a holder as a member, one in a Sequential, one in a list.
struct NetImpl : torch::nn::Module {
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential tail;
  torch::nn::ModuleList list;

  NetImpl() {
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    tail = register_module("tail", torch::nn::Sequential(torch::nn::Flatten(), torch::nn::BatchNorm1d(12)));
    list = register_module("list", torch::nn::ModuleList(torch::nn::BatchNorm1d(12)));
  }
  at::Tensor forward(const at::Tensor& x) {
    return list[0]->as<torch::nn::BatchNorm1dImpl>()->forward(tail->forward(norm->forward(x)));
  }
};
TORCH_MODULE(Net);

TEST(ConvertSyncBatchNorm, TrainsInsideDdpAsOneProcessWould) {
  const auto make = [] {
    torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)), torch::nn::BatchNorm2d(3),
                              torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(12, 2));
    net->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(4);
    for (auto& each : net->parameters()) each.normal_(0, 0.3, generator);
    return net;
  };
  with_torch_threads(3, [&](const ProcessGroupPtr& group) {
    auto net = make();
    auto whole = make();
    convert_sync_batch_norm(net.ptr(), group);
    DistributedDataParallel ddp(net, {.process_group = group});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    torch::optim::SGD reference(whole->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      const auto x = at::randn({6, 2, 4, 4}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(step)),
                               at::TensorOptions(at::kDouble));
      optimizer.zero_grad();
      ddp.forward(x.narrow(0, 2 * group->rank(), 2)).square().mean().backward();
      optimizer.step();
      reference.zero_grad();
      whole->forward(x).square().mean().backward();
      reference.step();
    }
    for (const auto& each : whole->named_parameters()) {
      EXPECT_TRUE(at::allclose(net->named_parameters()[each.key()], each.value(), 1e-9, 1e-10)) << each.key();
    }
    for (const auto& each : whole->named_buffers()) {
      EXPECT_TRUE(at::allclose(net->named_buffers()[each.key()], each.value(), 1e-9, 1e-10)) << each.key();
    }
    EXPECT_EQ(ddp.logging_data().integer("has_sync_bn"), 1);
  });
}

TEST(ConvertSyncBatchNorm, LayersBecomeSynchronousWhereTheyStand) {
  // The same as SyncBatchNorm itself, also for 3-D and 5-D layers.
  const auto converted = [](auto layer, const ProcessGroupPtr& group) {
    EXPECT_EQ(convert_sync_batch_norm(layer, group), 1U);
    EXPECT_EQ(sync_batch_norm_group(*layer), group);
    return layer;
  };
  expect_like_whole_batch({.rows = {3, 2}, .rest = {4}}, [&](std::int64_t channels, const auto& group) {
    return converted(torch::nn::BatchNorm1d(channels), group);
  });
  expect_like_whole_batch(
      {.rows = {2, 0, 3}, .rest = {4, 2, 3}, .type = at::kFloat, .channels_last = true},
      [&](std::int64_t channels, const auto& group) { return converted(torch::nn::BatchNorm2d(channels), group); });
  expect_like_whole_batch({.rows = {1, 2}, .rest = {2, 2, 3, 2}}, [&](std::int64_t channels, const auto& group) {
    return converted(torch::nn::BatchNorm3d(channels), group);
  });
}

TEST(ConvertSyncBatchNorm, FindsMembersSequentialsAndListsAndKeepsTheirTensors) {
  const Share share{.rows = {3, 2}, .rest = {3, 2, 2}};
  const auto x = share.random(1);
  Net whole;
  whole->to(at::kDouble);
  const auto expected = whole->forward(x);
  expected.square().sum().backward();

  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    Net net;
    net->to(at::kDouble);
    net->tail->eval();
    const auto parameters = net->parameters();
    const auto names = net->named_buffers().keys();
    EXPECT_EQ(convert_sync_batch_norm(net, group), 3U);
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 3U);  // again: the same
    EXPECT_FALSE(net->tail->is_training());
    EXPECT_TRUE(net->norm->is_training());
    net->train();
    const auto after = net->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(parameters[i].is_same(after[i]));
    EXPECT_EQ(net->named_buffers().keys(), names);

    const auto y = net->forward(share.of(x, group->rank()));
    expect_close(y.detach(), share.of(expected.detach(), group->rank()), "output");
    y.square().sum().backward();
    for (const auto& item : net->named_parameters()) {
      auto sum = item.value().grad().clone();
      group->all_reduce(sum);
      expect_close(sum, whole->named_parameters()[item.key()].grad(), item.key().c_str());
    }
    for (const auto& item : net->named_buffers()) {
      expect_close(item.value(), whole->named_buffers()[item.key()], item.key().c_str());
    }
  });
}

TEST(ConvertSyncBatchNorm, SurvivesConversionOfTypeSavingAndLoading) {
  const Share share{.rows = {3, 2}, .rest = {3}};
  const auto x = share.random(1);
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    torch::nn::BatchNorm1d layer(3);
    convert_sync_batch_norm(layer, group);
    layer->to(at::kDouble);
    const auto sees_all = [&](torch::nn::BatchNorm1d& each) {
      const auto expected = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
      expect_close(each->forward(share.of(x, group->rank())).detach(), share.of(expected, group->rank()), "output");
    };
    sees_all(layer);
    EXPECT_TRUE(layer->running_mean.is_same(layer->named_buffers()["running_mean"]));

    std::stringstream file;
    torch::save(layer, file);
    torch::nn::BatchNorm1d plain(3);
    plain->to(at::kDouble);
    torch::load(plain, file);
    expect_close(plain->running_mean, layer->running_mean, "saved from a converted layer");

    torch::nn::BatchNorm1d other(3);
    other->to(at::kDouble);
    convert_sync_batch_norm(other, group);
    file.clear();
    file.seekg(0);
    torch::load(other, file);
    expect_close(other->running_mean, layer->running_mean, "loaded into a converted layer");
    sees_all(other);

    // Everything else that touches the running mean is plain.
    EXPECT_EQ(at::add(layer->running_mean, 1).key_set(), at::ones({3}, at::kDouble).key_set());
    layer->eval();
    const auto before = group->sequence_number();
    layer->forward(share.of(x, group->rank()));
    EXPECT_EQ(group->sequence_number(), before);
  });
}

TEST(ConvertSyncBatchNorm, TakesLayersWithoutStatisticsOrParameters) {
  const Share share{.rows = {3, 2}, .rest = {2}};
  const auto x = share.random(1);
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    torch::nn::BatchNorm1d layer(torch::nn::BatchNorm1dOptions(2).affine(false).track_running_stats(false));
    convert_sync_batch_norm(layer, group);
    EXPECT_EQ(layer->buffers().size(), 0U);
    const auto expected = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    expect_close(layer->forward(share.of(x, group->rank())), share.of(expected, group->rank()), "output");
  });
}

TEST(ConvertSyncBatchNorm, NeedsAGroupAndLeavesOtherLayersAlone) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::InstanceNorm1d(2));
  EXPECT_ERROR(Error, convert_sync_batch_norm(net), "convert_sync_batch_norm");
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const ProcessGroupGuard scope(group);
    torch::nn::Sequential mine(torch::nn::Linear(2, 2), torch::nn::InstanceNorm1d(2));
    EXPECT_EQ(convert_sync_batch_norm(mine), 0U);
    torch::nn::BatchNorm1d layer(2);
    EXPECT_THROW(layer->forward(at::ones({1, 2})), c10::Error);  // libtorch's own check; SyncBatchNorm takes it
    EXPECT_EQ(sync_batch_norm_group(*layer), nullptr);
    EXPECT_EQ(convert_sync_batch_norm(layer), 1U);
    EXPECT_EQ(sync_batch_norm_group(*layer), group);
  });
}

}  // namespace
}  // namespace cohort::test
