// SPDX-License-Identifier: BSD-3-Clause
//
// Layers that are computed again in backward instead of keeping what they need for it. libtorch has no such function in
// C++; this is the re-entrant form as users write it, a backward inside the backward.
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return layer->forward(x);  // without gradients: nothing is kept
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    auto x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const torch::AutoGradMode enabled(true);
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

struct Deep : torch::nn::Module {
  Deep() {
    for (auto* each : {&first, &second, &third, &spare}) *each = torch::nn::Linear(4, 4);
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    to(torch::kDouble);
  }
  /// `times`: how often the second layer is used.
  at::Tensor forward(const at::Tensor& x, bool recomputes, int times) {
    const auto run = [&](torch::nn::Linear& layer, const at::Tensor& in) {
      return recomputes ? Recomputed::apply(in, layer.get()) : layer->forward(in);
    };
    auto y = torch::tanh(first->forward(x));
    for (int i = 0; i < times; ++i) y = torch::tanh(run(second, y));
    return run(third, y);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, spare{nullptr};
};

/// Gradients of recomputed layers are those of layers that kept everything, averaged over the ranks.
void expect_recomputed_is_the_same(const ProcessGroupPtr& group, DdpOptions options, int times, bool has_unused) {
  options.process_group = group;
  const auto net = std::make_shared<Deep>();
  if (has_unused) net->register_module("spare", net->spare);
  net->to(torch::kDouble);
  fill(*net, 3);
  const auto plain = std::make_shared<Deep>();
  fill(*plain, 3);
  DistributedDataParallel ddp(net, options);
  const auto n = group->size();
  for (int step = 0; step < 4; ++step) {
    const auto x = random_batch(step, {2 * n, 4});
    ddp.zero_grad(true);
    ddp.forward(x.narrow(0, 2 * group->rank(), 2), true, times).sum().backward();
    plain->zero_grad();
    plain->forward(x, false, times).sum().backward();
    for (const auto& each : plain->named_parameters()) {
      EXPECT_LT(distance(net->named_parameters()[each.key()].grad() * n, each.value().grad()), 1e-12)
          << each.key() << " in step " << step;
    }
  }
}

TEST(DdpCheckpointing, EachLayerOnceIsAsWithout) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    expect_recomputed_is_the_same(group, {}, 1, false);
    expect_recomputed_is_the_same(group, {.gradient_as_bucket_view = false}, 1, false);
    expect_recomputed_is_the_same(group, {.bucket_cap_mb = 0.0001}, 1, false);
  });
}

TEST(DdpCheckpointing, StaticGraphsTakeALayerSeveralTimesAndUnusedParameters) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    expect_recomputed_is_the_same(group, {.static_graph = true}, 1, false);
    expect_recomputed_is_the_same(group, {.static_graph = true}, 3, false);
    expect_recomputed_is_the_same(group, {.static_graph = true}, 2, true);
  });
}

TEST(DdpCheckpointing, ALayerTwiceOrUnseenByTheSearchIsAnError) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto x = random_batch(1, {2, 4});
    const auto twice = std::make_shared<Deep>();
    DistributedDataParallel ddp(twice, {.process_group = group});
    EXPECT_ERROR(Error, ddp.forward(x, true, 2).sum().backward(), "got its gradient twice");
    // The search for unused parameters cannot look into what is not computed yet.
    const auto unseen = std::make_shared<Deep>();
    DistributedDataParallel searches(unseen, {.process_group = group, .find_unused_parameters = true});
    EXPECT_ERROR(Error, searches.forward(x, true, 1).sum().backward(), "got its gradient twice");
  });
}

}  // namespace
}  // namespace cohort::test
