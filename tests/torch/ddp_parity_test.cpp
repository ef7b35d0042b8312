// SPDX-License-Identifier: BSD-3-Clause
//
// Parameters, outputs and settings that PyTorch's wrapper handles in a way of its own.
#include <tuple>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using torch::nn::utils::rnn::PackedSequence;

// --- parameters

struct TwiceNamedImpl : torch::nn::Module {
  TwiceNamedImpl() {
    layer = register_module("encoder", Scale(2.0));
    register_module("decoder", layer);
    tied = register_parameter("tied", layer->weight);
    other = register_parameter("other", torch::ones({1}, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x) + other; }
  Scale layer{nullptr};
  at::Tensor tied, other;
};
TORCH_MODULE(TwiceNamed);

TEST(DdpParameters, AreListedOnceHoweverManyNamesTheyHave) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    TwiceNamed net;
    DistributedDataParallel ddp(net, {.process_group = group});
    EXPECT_EQ(net->parameters().size(), 4U) << "libtorch's own list, which has the weight three times";
    ASSERT_EQ(ddp.parameters().size(), 2U);
    EXPECT_TRUE(ddp.parameters()[0].is_same(net->layer->weight));
    EXPECT_TRUE(ddp.parameters()[1].is_same(net->other));
    EXPECT_TRUE(ddp.parameters(/*recurse=*/false).empty());
    torch::optim::SGD optimizer(ddp.parameters(), 1.0);
    ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble)).sum().backward();
    optimizer.step();
    EXPECT_EQ(net->layer->weight.item<double>(), 0.5) << "stepped once";
    EXPECT_EQ(net->other.item<double>(), 0.0);
  });
}

// --- packed sequences as outputs

struct PacksImpl : torch::nn::Module {
  PacksImpl() {
    a = register_parameter("a", torch::ones({1}, torch::kDouble));
    b = register_parameter("b", torch::ones({1}, torch::kDouble));
  }
  std::tuple<PackedSequence, at::Tensor> forward(const PackedSequence& x) {
    return {PackedSequence(a * x.data(), x.batch_sizes()), (b * x.data()).sum()};
  }
  at::Tensor a, b;
};
TORCH_MODULE(Packs);

TEST(DdpOutputs, InPackedSequencesAreFound) {
  static_assert(detail::is_traversable<PackedSequence>());
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      Packs net;
      DistributedDataParallel ddp(
          net, {.process_group = group, .find_unused_parameters = !is_static, .static_graph = is_static});
      const auto value = group->rank() + 1.0;
      const PackedSequence x(torch::full({3}, value, torch::kDouble), torch::tensor({2, 1}, torch::kLong));
      for (int i = 0; i < 3; ++i) {
        for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
        const auto [packed, sum] = ddp.forward(x);
        EXPECT_TRUE(at::equal(packed.batch_sizes(), x.batch_sizes()));
        // Once the sequence is part of the loss, and once the other output: what is not makes its parameter unused,
        // which is found through the sequence's tensor only. The graph of a static one must not change.
        const bool uses_packed = is_static || i % 2 == 0;
        const bool uses_sum = is_static || i % 2 == 1;
        (uses_packed && uses_sum ? packed.data().sum() + sum : uses_packed ? packed.data().sum() : sum).backward();
        const auto value_of = [](const at::Tensor& parameter) {
          return parameter.grad().defined() ? grad_of(parameter) : 0.0;
        };
        EXPECT_EQ(value_of(net->a), uses_packed ? 4.5 : 0.0);
        EXPECT_EQ(value_of(net->b), uses_sum ? 4.5 : 0.0);
      }
    });
  }
}

// --- settings

TEST(DdpLog, ShowsTheCapOfTheBucketsThatFollowTheListed) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_caps_mb = {0.5, 1.5}});
    EXPECT_EQ(ddp.logging_data().integer("bucket_cap_bytes"), 3 << 19);
  });
}

}  // namespace
}  // namespace cohort::test
