// SPDX-License-Identifier: BSD-3-Clause
//
// Computing in another type than parameters have, and what happens to forward's arguments on the way.
#include <torch/nn/utils/rnn.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::Each;

TEST(DdpMixedPrecision, ComputesInOneTypeAndKeepsParametersInTheirOwn) {
  struct Watches : torch::nn::Module {
    Watches() {
      weight = register_parameter("weight", torch::ones({4}));
      running = register_buffer("running", torch::zeros({1}));
    }
    at::Tensor forward(const at::Tensor& x) {
      seen = weight.scalar_type();
      seen_input = x.scalar_type();
      return (weight * x).sum();
    }
    at::Tensor weight, running;
    at::ScalarType seen = at::kFloat, seen_input = at::kFloat;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Watches>();
    DistributedDataParallel ddp(
        net, {.process_group = group,
              .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16}});
    torch::optim::SGD optimizer(ddp.parameters(), 1.0 / 1024);
    EXPECT_EQ(net->running.scalar_type(), at::kBFloat16);
    const auto x = torch::full({4}, group->rank() + 1.0);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      auto loss = ddp.forward(x);
      EXPECT_EQ(net->seen, at::kBFloat16);
      EXPECT_EQ(net->seen_input, at::kBFloat16);
      loss.backward();
      EXPECT_EQ(net->weight.scalar_type(), at::kFloat) << "the master is back";
      EXPECT_EQ(net->weight.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({4}, 1.5F)));
      optimizer.step();
    }
    EXPECT_FLOAT_EQ(net->weight[0].item<float>(), 1 - 4.5F / 1024) << "steps too small for the smaller type";
    {
      const auto local = ddp.no_sync();
      optimizer.zero_grad();
      ddp.forward(x).backward();
      EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
      EXPECT_EQ(net->weight.grad()[0].item<float>(), static_cast<float>(group->rank() + 1));
    }
    {
      const torch::NoGradGuard no_grad;
      ddp.forward(x);
      EXPECT_EQ(net->seen, at::kBFloat16);
      EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
    }
    EXPECT_ERROR(Error, ddp.register_comm_hook([](GradBucket& bucket) { return completed_future(bucket.buffer()); }),
                 "only one");
  });
}

TEST(DdpMixedPrecision, GradientsAddUpInFullPrecisionAndIgnoredParametersKeepTheirType) {
  struct Two : torch::nn::Module {
    Two() {
      cast = register_parameter("cast", torch::ones({4}));
      own = register_parameter("own", torch::ones({4}));
    }
    at::Tensor forward(const at::Tensor& x) {
      seen = {cast.scalar_type(), own.scalar_type()};
      return (cast * x).sum().to(at::kFloat) + own.sum() * 3;
    }
    at::Tensor cast, own;
    std::vector<at::ScalarType> seen;
  };
  for (const bool is_view : {true, false}) {
    with_torch_threads(2, [is_view](const ProcessGroupPtr& group) {
      const auto net = std::make_shared<Two>();
      DistributedDataParallel ddp(
          net, {.process_group = group,
                .gradient_as_bucket_view = is_view,
                .ignored = {"own"},
                .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
      // Each a number of the smaller type, their sum is none: 257 would be 256 there.
      const auto x = torch::full({4}, group->rank() == 0 ? 256.0F : 0.0F);
      const auto little = torch::full({4}, 1.0F);
      ddp.forward(2 * x).backward();
      EXPECT_THAT(net->seen, ::testing::ElementsAre(at::kBFloat16, at::kFloat));
      ddp.forward(little).backward();
      EXPECT_TRUE(torch::equal(net->cast.grad(), torch::full({4}, 257.0F))) << net->cast.grad();
      {
        const auto local = ddp.no_sync();
        ddp.forward(torch::full({4}, group->rank() + 1.0, torch::kFloat)).backward();
      }
      ddp.forward(little).backward();
      EXPECT_TRUE(torch::equal(net->cast.grad(), torch::full({4}, 259.5F))) << "257, the average of 1 and 2, and 1";
      EXPECT_TRUE(torch::equal(net->own.grad(), torch::full({4}, 12.0F))) << "its own, four times";
      EXPECT_EQ(net->own.grad().scalar_type(), at::kFloat);
    });
  }
}

TEST(DdpMixedPrecision, AForwardWithoutGradientsMayComeBetween) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
    DistributedDataParallel ddp(
        net, {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    const auto& weight = net[0]->as<torch::nn::Linear>()->weight;
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      const auto y = ddp.forward(torch::ones({2, 4}));
      {
        const torch::NoGradGuard no_grad;
        EXPECT_EQ(ddp.forward(torch::ones({2, 4})).scalar_type(), at::kBFloat16);
      }
      y.sum().backward();
      EXPECT_EQ(weight.scalar_type(), at::kFloat);
      const auto all = all_gather_async(*group, weight.grad()).value();
      EXPECT_TRUE(torch::equal(all[0], all[1])) << "averaged";
    }
  });
}

/// A weight that bfloat16 does not have, and something in backward that may fail.
struct Fine : torch::nn::Module {
  static constexpr float value = 1.001F;
  struct Fails : torch::autograd::Function<Fails> {
    static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                   const torch::autograd::variable_list& /*gradients*/) {
      throw ValueError("on the way");
    }
  };
  Fine() { weight = register_parameter("weight", torch::full({2}, value)); }
  at::Tensor forward(const at::Tensor& x, bool fails = false) {
    seen = weight.scalar_type();
    const auto y = weight * x;
    return weight * (fails ? Fails::apply(y) : y);
  }
  bool is_master() const { return weight.scalar_type() == at::kFloat && torch::equal(weight, torch::full({2}, value)); }
  at::Tensor weight;
  at::ScalarType seen = at::kFloat;
};

TEST(DdpMixedPrecision, SavingLoadingAndSteppingBehindAForwardWorkOnTheMasters) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Fine>();
    DistributedDataParallel ddp(
        net, {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    torch::optim::SGD optimizer(ddp.parameters(), 1.0 / 1024);
    const auto x = torch::ones({2});
    for (const bool syncs : {true, false}) {
      const auto scope = syncs ? nullptr : std::make_unique<ddp::NoSync>(ddp.no_sync());
      ddp.zero_grad();
      const auto y = ddp.forward(x);  // its backward may still come
      EXPECT_EQ(net->seen, at::kBFloat16);
      EXPECT_TRUE(net->is_master());
      std::stringstream file;
      torch::save(net, file);
      Fine saved;
      torch::serialize::InputArchive archive;
      archive.load_from(file);
      saved.load(archive);
      EXPECT_TRUE(saved.is_master());
      y.sum().backward();
      EXPECT_TRUE(net->is_master());
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2}, 2.0F))) << "of the copy, which is 1";

      ddp.forward(x);
      optimizer.step();
      EXPECT_TRUE(torch::equal(net->weight, torch::full({2}, Fine::value - 2.0F / 1024)));
      ddp.forward(x);
      EXPECT_TRUE(torch::equal(net->weight, torch::full({2}, Fine::value - 2.0F / 1024))) << "a step that lasts";

      const auto before = ddp.forward(x);
      torch::serialize::InputArchive back;
      file.seekg(0);
      back.load_from(file);
      net->load(back);
      EXPECT_TRUE(net->is_master());
      EXPECT_THAT([&] { before.sum().backward(); },
                  ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("modified by an inplace operation")));
      EXPECT_TRUE(net->is_master()) << "also after a backward that failed";
      ddp.update_process_group(group);
      ddp.forward(x);
      EXPECT_TRUE(net->is_master()) << "what was loaded lasts";
    }
  });
}

TEST(DdpMixedPrecision, ParametersAreCopiesDuringBackwardsAlone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Fine>();
    DistributedDataParallel ddp(
        net, {.process_group = group,
              .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
    const auto x = torch::ones({2});
    // The copy is 1, so each term of the product rule is.
    const auto expected = torch::full({2}, 2.0F);
    EXPECT_ERROR(ValueError, ddp.forward(x, true).sum().backward(), "on the way");
    EXPECT_TRUE(net->is_master());
    ddp.update_process_group(group);
    ddp.zero_grad();

    (ddp.forward(x) + ddp.forward(x)).sum().backward();
    EXPECT_TRUE(torch::equal(net->weight.grad(), 2 * expected)) << "two forwards";
    ddp.zero_grad();
    {
      const auto local = ddp.no_sync();
      const auto y = ddp.forward(x).sum();
      y.backward({}, /*retain_graph=*/true);
      EXPECT_TRUE(net->is_master());
      y.backward();
      EXPECT_TRUE(torch::equal(net->weight.grad(), 2 * expected)) << "two backwards";
    }
    ddp.zero_grad();
    auto input = torch::ones({2}, torch::requires_grad());
    const auto y = ddp.forward(input).sum();
    const auto of_input = torch::autograd::grad({y}, {input}, {}, /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(of_input[0], torch::ones({2})));
    EXPECT_TRUE(net->is_master());
    y.backward();
    EXPECT_TRUE(torch::equal(net->weight.grad(), expected)) << "behind a gradient of the input";
    ddp.zero_grad();
    // A penalty is computed from the masters, whose square's gradient is 2.002.
    const auto loss = ddp.forward(x).sum();
    (loss + net->weight.square().sum()).backward();
    EXPECT_TRUE(torch::allclose(net->weight.grad(), torch::full({2}, 4.002F), 1e-6, 0)) << net->weight.grad();
  });
}

TEST(DdpMixedPrecision, NeedsTheTensorsInForwardsResult) {
  struct Hides : torch::nn::Module {
    Hides() { weight = register_parameter("weight", torch::ones({2})); }
    void forward(const at::Tensor& x) { loss = (weight * x).sum(); }
    at::Tensor weight, loss;
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel hides(
        std::make_shared<Hides>(),
        {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    EXPECT_ERROR(ValueError, hides.forward(torch::ones({2})), "mixed_precision need the tensors");
  });
}

TEST(DdpMixedPrecision, FrozenComplexAndSparseParametersTakePart) {
  struct Net : torch::nn::Module {
    Net() {
      frozen = register_parameter("frozen", torch::ones({2}), false);
      complex = register_parameter("complex", torch::ones({2}, torch::kComplexFloat));
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
    }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& words) {
      EXPECT_EQ(frozen.scalar_type(), at::kBFloat16);
      const auto i = c10::complex<float>(1, 2);
      return (table->forward(words) * frozen * x).sum().to(at::kFloat) + torch::real(complex * i).sum();
    }
    at::Tensor frozen, complex;
    torch::nn::Embedding table{nullptr};
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(
        net, {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    ddp.forward(torch::full({2}, group->rank() + 1.0, torch::kFloat), torch::tensor({1}, torch::kLong)).backward();
    EXPECT_EQ(net->frozen.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(net->complex.grad(), torch::full({2}, c10::complex<float>(1, -2), torch::kComplexFloat)))
        << net->complex.grad();
    EXPECT_TRUE(torch::equal(net->table->weight.grad().to_dense()[1], torch::full({2}, 1.5F)));
  });
}

TEST(DdpMixedPrecision, InAJoinIsDividedByThoseWhoAreThere) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    DistributedDataParallel ddp(
        net, {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    std::vector<float> seen;
    join({&ddp},
         [&] {
           for (int i = 0; i < 1 + group->rank(); ++i) {
             ddp.zero_grad();
             ddp.forward(torch::full({1, 1}, group->rank() + 1.0, torch::kFloat)).sum().backward();
             seen.push_back(net->weight.grad().item<float>());
           }
         },
         {.divide_by_initial_size = false});
    EXPECT_EQ(seen, group->rank() == 0 ? std::vector<float>({1.5F}) : std::vector<float>({1.5F, 2.0F}));
  });
}

// --- arguments

/// Everything that an argument of forward may be made of.
struct TakesAll : torch::nn::Module {
  using Batch = std::tuple<std::vector<at::Tensor>, std::map<std::string, at::Tensor>, int>;
  TakesAll() { weight = register_parameter("weight", torch::ones({2})); }
  at::Tensor forward(const Batch& batch, const torch::nn::utils::rnn::PackedSequence& packed,
                     const std::optional<at::Tensor>& nothing, const at::Tensor& ids) {
    const auto& [list, named, factor] = batch;
    seen = {list[0].scalar_type(), list[1].scalar_type(), named.at("x").scalar_type(), packed.data().scalar_type()};
    seen_ids = {ids.scalar_type(), packed.batch_sizes().scalar_type()};
    EXPECT_FALSE(nothing.has_value());
    return (weight * (list[0] + list[1] + named.at("x")) * factor).sum() + packed.data().sum();
  }
  at::Tensor weight;
  std::vector<at::ScalarType> seen, seen_ids;
};

TEST(DdpInputs, AreCastInsideContainersAndPackedSequences) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<TakesAll>();
    DistributedDataParallel ddp(
        net, {.process_group = group, .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    const auto x = torch::full({2}, group->rank() + 1.0, torch::kFloat);
    TakesAll::Batch batch{{x, x}, {{"x", x}}, 2};
    const auto packed = torch::nn::utils::rnn::pack_sequence({torch::ones({3, 1}), torch::ones({2, 1})});
    ddp.forward(batch, packed, std::optional<at::Tensor>(), torch::ones({2}, torch::kLong)).backward();
    EXPECT_THAT(net->seen, Each(at::kBFloat16));
    EXPECT_THAT(net->seen_ids, Each(at::kLong)) << "integers are left as they are";
    EXPECT_EQ(std::get<0>(batch)[0].scalar_type(), at::kFloat) << "the caller's stay";
    EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2}, 9.0F)));
  });
}

}  // namespace
}  // namespace cohort::test
