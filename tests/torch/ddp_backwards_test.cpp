// SPDX-License-Identifier: BSD-3-Clause
//
// Which backwards are averaged: one after each forward, or after several. What would not be averaged is an error.
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

constexpr const char* not_averaged = "would not be averaged";

at::Tensor input_of_rank(const ProcessGroupPtr& group) {
  return torch::full({1}, group->rank() + 1.0, torch::kDouble);
}

struct How {
  const char* name;
  bool finds_unused = false;
  bool is_static = false;
  bool is_view = true;

  DdpOptions options(const ProcessGroupPtr& group) const {
    return {.process_group = group,
            .find_unused_parameters = finds_unused,
            .gradient_as_bucket_view = is_view,
            .static_graph = is_static};
  }
  friend void PrintTo(const How& how, std::ostream* out) { *out << how.name; }
};

class Backwards : public ::testing::TestWithParam<How> {
 protected:
  /// Calls `body` with a wrapped model before its first iteration, and with one that has trained. Afterwards the model
  /// has to train as ever.
  template <class Body>
  static void with_models(Body&& body) {
    for (const int before : {0, 3}) {
      SCOPED_TRACE(before);
      with_torch_threads(2, [&, before, how = GetParam()](const ProcessGroupPtr& group) {
        Scale net;
        DistributedDataParallel ddp(net, how.options(group));
        const auto train = [&] {
          ddp.zero_grad();
          ddp.forward(input_of_rank(group)).sum().backward();
          EXPECT_EQ(grad_of(net->weight), 1.5);
        };
        for (int i = 0; i < before; ++i) train();
        ddp.zero_grad();
        body(ddp, *net, input_of_rank(group));
        for (int i = 0; i < 3; ++i) train();
      });
    }
  }
};

using ScaleDdp = DistributedDataParallel<ScaleImpl>;

TEST_P(Backwards, OfTwoForwardsTogetherAreAveraged) {
  with_models([](ScaleDdp& ddp, ScaleImpl& net, const at::Tensor& x) {
    (ddp.forward(x) + ddp.forward(2 * x)).sum().backward();
    EXPECT_EQ(grad_of(net.weight), 4.5);
  });
}

TEST_P(Backwards, TheSecondOfTwoForwardsIsAnError) {
  with_models([](ScaleDdp& ddp, ScaleImpl& net, const at::Tensor& x) {
    const auto first = ddp.forward(x).sum();
    const auto second = ddp.forward(2 * x).sum();
    first.backward();
    EXPECT_EQ(grad_of(net.weight), 1.5);
    EXPECT_ERROR(Error, second.backward(), not_averaged);
    EXPECT_NE(ddp.logging_data().integer("has_error"), 0);
  });
}

TEST_P(Backwards, TheSecondOfOneForwardIsAnError) {
  with_models([](ScaleDdp& ddp, ScaleImpl& /*net*/, const at::Tensor& x) {
    const auto loss = ddp.forward(x).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_ERROR(Error, loss.backward(), not_averaged);
  });
}

TEST_P(Backwards, AForwardInNoSyncInBetweenIsAnError) {
  with_models([](ScaleDdp& ddp, ScaleImpl& /*net*/, const at::Tensor& x) {
    const auto loss = ddp.forward(x).sum();
    {
      const auto local = ddp.no_sync();
      ddp.forward(x);
    }
    EXPECT_ERROR(Error, loss.backward(), not_averaged);
  });
}

TEST_P(Backwards, OfForwardsThatDoNotSynchroniseAreTheRanksOwn) {
  with_models([](ScaleDdp& ddp, ScaleImpl& net, const at::Tensor& x) {
    const auto own = x.item<double>();
    {
      const auto local = ddp.no_sync();
      const auto first = ddp.forward(x).sum();
      const auto second = ddp.forward(x).sum();
      first.backward();
      second.backward();
    }
    EXPECT_EQ(grad_of(net.weight), 2 * own);
    ddp.zero_grad();
    ddp.forward(x).sum().backward();
    net.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net.weight), 1.5 + own) << "of the module itself, which synchronises nothing";
  });
}

TEST_P(Backwards, OfSomeForwardsMayBeLeftOut) {
  with_models([](ScaleDdp& ddp, ScaleImpl& net, const at::Tensor& x) {
    ddp.forward(3 * x);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net.weight), 1.5);
  });
}

// A gradient penalty: the first gradient is taken of the input, and reaches no parameter.
TEST_P(Backwards, ThatReachNoParameterDoNotCount) {
  with_models([](ScaleDdp& ddp, ScaleImpl& net, const at::Tensor& x) {
    auto input = x.clone().requires_grad_();
    const auto y = ddp.forward(input);
    const auto slope = torch::autograd::grad({y.sum()}, {input}, {}, true, true)[0];
    (y.sum() + slope.sum()).backward({}, /*retain_graph=*/true);
    EXPECT_EQ(grad_of(net.weight), 2.5);
    EXPECT_NO_THROW(torch::autograd::grad({y.sum()}, {input}));
  });
}

INSTANTIATE_TEST_SUITE_P(Torch, Backwards,
                         ::testing::Values(How{.name = "Plain"}, How{.name = "NotViews", .is_view = false},
                                           How{.name = "FindUnused", .finds_unused = true},
                                           How{.name = "StaticGraph", .is_static = true}),
                         [](const auto& how) { return how.param.name; });

// Ranks that are processes, with buckets in shared memory, end alike and go on.
TEST(BackwardsOf, ProcessesAreRefusedOnAllRanks) {
  with_torch_processes(3, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      const auto first = ddp.forward(input_of_rank(group)).sum();
      const auto second = ddp.forward(input_of_rank(group)).sum();
      first.backward();
      EXPECT_DOUBLE_EQ(grad_of(net->weight), 2.0);
      EXPECT_ERROR(Error, second.backward(), not_averaged);
    }
  });
}

// With create_graph the gradient of gradients sees this rank's part alone, which is told and allowed.
TEST(BackwardsOf, GradientsOfABackwardWithCreateGraphAreTheRanksOwn) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group, .gradient_as_bucket_view = false});
    const auto y = ddp.forward(input_of_rank(group));
    y.pow(2).sum().backward({}, true, true);
    EXPECT_EQ(grad_of(net->weight), 5.0);
    EXPECT_NO_THROW((net->weight.grad() + y).sum().backward());
    net->weight.mutable_grad() = at::Tensor();  // a gradient with a graph and its parameter keep each other alive
  });
}

}  // namespace
}  // namespace cohort::test
