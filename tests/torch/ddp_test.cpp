// SPDX-License-Identifier: BSD-3-Clause
//
// DistributedDataParallel: averages, accumulation, buckets over time, refusals, ends.
#include "torch/ddp_test.h"

#include <cohort/current_group.h>

#include <algorithm>

namespace cohort::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- averages

TEST(Ddp, ConstructionMakesReplicasEqual) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    Mlp net;
    fill(*net, 100 + group->rank());
    net->register_buffer("steps", torch::full({2}, group->rank(), torch::kLong));
    net->register_parameter("frozen", torch::full({2}, group->rank() + 1.0, torch::kDouble), false);
    DistributedDataParallel ddp(net, {.process_group = group});
    Mlp expected;
    fill(*expected, 100);
    for (const auto& each : expected->named_parameters()) {
      EXPECT_TRUE(torch::equal(net->named_parameters()[each.key()], each.value())) << each.key();
    }
    EXPECT_TRUE(torch::equal(net->named_buffers()["steps"], torch::zeros({2}, torch::kLong)));
    EXPECT_TRUE(torch::equal(net->named_parameters()["frozen"], torch::ones({2}, torch::kDouble)));
    EXPECT_TRUE(ddp.named_parameters().contains("module.layer0.weight")) << "the prefix of its state";
  });
}

TEST(Ddp, WithoutInitSyncConstructionCommunicatesNothing) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net(group->rank());
    const DistributedDataParallel ddp(net, {.process_group = group, .init_sync = false});
    EXPECT_EQ(group->sequence_number(), 0U);
    EXPECT_EQ(net->weight.item<double>(), group->rank());
  });
}

TEST(Ddp, TrainsAsOneProcessWouldOnTheWholeBatch) {
  for (const int size : {1, 2, 3, 5}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      expect_same_as_one_process(group, {}, 100);
      expect_same_as_one_process(group, {.bucket_cap_mb = 0.001}, 20);
      expect_same_as_one_process(group, {.gradient_as_bucket_view = false}, 20);
      expect_same_as_one_process(group, {.find_unused_parameters = true}, 20);
      expect_same_as_one_process(group, {.static_graph = true}, 20);
      expect_same_as_one_process(group, {.bucket_caps_mb = {0.0005, 0.002}}, 20);
      expect_same_as_one_process(group, {.batched_grad_copy = true}, 20);
      expect_same_as_one_process(group, {.gradient_as_bucket_view = false, .batched_grad_copy = true}, 20);
    });
  }
}

TEST(Ddp, TrainsInProcesses) {
  with_torch_processes(2, [](const ProcessGroupPtr& group) { expect_same_as_one_process(group, {}, 30); });
}

TEST(Ddp, SharedParametersAreReducedOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
      register_parameter("again", weight);
    }
    at::Tensor forward(const at::Tensor& x) { return weight * x * weight; }
    at::Tensor weight;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Tied>();
    DistributedDataParallel ddp(net, {.process_group = group});
    EXPECT_EQ(ddp.managed_parameters().size(), 1U);
    ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble)).sum().backward();
    EXPECT_EQ(grad_of(net->weight), 3.0) << "2 w x, averaged over x = 1, 2";
  });
}

TEST(Ddp, TypesAndComplexNumbersMix) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      a = register_parameter("a", torch::ones({3}, torch::kFloat));
      b = register_parameter("b", torch::ones({3}, torch::kDouble));
      c = register_parameter("c", torch::ones({3}, torch::kComplexDouble));
      none = register_parameter("none", torch::ones({0, 3}, torch::kDouble));
    }
    at::Tensor forward(double x) {
      return (a * x).sum() + (b * x).sum() + torch::real(c * c10::complex<double>(x, 2 * x)).sum() + none.sum();
    }
    at::Tensor a, b, c, none;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Mixed>();
    DistributedDataParallel ddp(net, {.process_group = group});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(group->rank() + 1.0).backward();
      EXPECT_TRUE(torch::equal(net->a.grad(), torch::full({3}, 1.5F)));
      EXPECT_TRUE(torch::equal(net->b.grad(), torch::full({3}, 1.5, torch::kDouble)));
      EXPECT_TRUE(torch::equal(torch::real(net->c.grad()), torch::full({3}, 1.5, torch::kDouble)));
      EXPECT_TRUE(torch::equal(torch::imag(net->c.grad()), torch::full({3}, -3.0, torch::kDouble))) << "the conjugate";
    }
    EXPECT_EQ(ddp.logging_data().text("dtypes"), "Float, Double, ComplexDouble");
  });
}

TEST(Ddp, HoldersAndSequentialsAreTakenOnTheStackAndInPointers) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    torch::nn::Sequential stack(torch::nn::Linear(4, 3), torch::nn::Tanh(), torch::nn::Linear(3, 1));
    const auto ddp = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(
        stack.ptr(), DdpOptions{.process_group = group});
    ddp->forward(torch::ones({2, 4})).sum().backward();
    DistributedDataParallel line(torch::nn::Linear(2, 1), {.process_group = group});
    line(torch::ones({1, 2})).sum().backward();
    EXPECT_TRUE(line.module()->weight.grad().defined());
  });
}

// --- accumulation

// Autograd may hand over a conjugate that nobody has computed yet.
TEST(Ddp, ConjugatesAreResolved) {
  struct Conjugates : torch::nn::Module {
    Conjugates() { weight = register_parameter("weight", torch::ones({2}, torch::kComplexDouble)); }
    at::Tensor forward(const at::Tensor& x) { return torch::real(x * weight.conj()).sum(); }
    at::Tensor weight;
  };
  for (const bool is_view : {true, false}) {
    for (const bool is_batched : {true, false}) {
      with_torch_threads(2, [&](const ProcessGroupPtr& group) {
        const auto net = std::make_shared<Conjugates>();
        DistributedDataParallel ddp(
            net, {.process_group = group, .gradient_as_bucket_view = is_view, .batched_grad_copy = is_batched});
        const auto x =
            torch::full({2}, c10::complex<double>(group->rank() + 1.0, group->rank()), torch::kComplexDouble);
        for (int i = 0; i < 3; ++i) {
          for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
          ddp.forward(x).backward();
          EXPECT_TRUE(torch::equal(net->weight.grad().resolve_conj(),
                                   torch::full({2}, c10::complex<double>(1.5, 0.5), torch::kComplexDouble)))
              << net->weight.grad();
        }
      });
    }
  }
}

TEST(Ddp, NoSyncAccumulatesAndTheNextStepReducesTheSum) {
  for (const bool is_view : {true, false}) {
    with_torch_threads(2, [is_view](const ProcessGroupPtr& group) {
      Scale net;
      DistributedDataParallel ddp(net, {.process_group = group, .gradient_as_bucket_view = is_view});
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      {
        const auto local = ddp.no_sync();
        const auto nested = ddp.no_sync();
        ddp.forward(x).sum().backward();
      }
      EXPECT_EQ(grad_of(net->weight), group->rank() + 1.0);
      ddp.forward(x).sum().backward();
      EXPECT_EQ(grad_of(net->weight), 3.0);
      ddp.forward(x).sum().backward();
      EXPECT_EQ(grad_of(net->weight), 4.5) << "without zeroing, the shared part stays";
    });
  }
}

TEST(Ddp, GradientsAreBucketMemoryWhateverZeroGradDoes) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto step = [&](bool to_none) {
      for (auto& parameter : ddp.parameters()) {
        if (to_none) {
          parameter.mutable_grad() = at::Tensor();
        } else if (parameter.grad().defined()) {
          parameter.grad().zero_();
        }
      }
      ddp.forward(random_batch(group->rank(), {3, 4})).sum().backward();
    };
    for (int i = 0; i < 3; ++i) step(true);
    const auto first = net->parameters()[0].grad().clone();
    auto* const where = net->parameters()[0].grad().data_ptr();
    for (const bool to_none : {false, true, false}) {
      step(to_none);
      EXPECT_EQ(net->parameters()[0].grad().data_ptr(), where);
      EXPECT_TRUE(torch::equal(net->parameters()[0].grad(), first));
    }
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    optimizer.zero_grad();
    EXPECT_TRUE(group->capabilities("cpu").group_memory);
  });
}

TEST(Ddp, AReplacedGradientIsAnErrorWhereGradientsAreViews) {
  struct Replaces : torch::nn::Module {
    Replaces() { weight = register_parameter("weight", torch::ones({2}, torch::kDouble)); }
    at::Tensor forward(const at::Tensor& x) {
      auto y = weight * x;
      return y;
    }
    at::Tensor weight;
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Replaces>();
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.register_comm_hook([net](GradBucket& bucket) {
      net->weight.mutable_grad() = torch::ones({2}, torch::kDouble);
      return completed_future(bucket.buffer());
    });
    EXPECT_ERROR(Error, ddp.forward(torch::ones({2}, torch::kDouble)).sum().backward(), "was replaced");
  });
}

TEST(Ddp, StridesOfParametersArePreserved) {
  struct Conv : torch::nn::Module {
    Conv() {
      weight = register_parameter(
          "weight", torch::ones({4, 3, 2, 2}, torch::kDouble).contiguous(torch::MemoryFormat::ChannelsLast));
    }
    at::Tensor forward(const at::Tensor& x) { return torch::conv2d(x, weight); }
    at::Tensor weight;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Conv>();
    DistributedDataParallel ddp(net, {.process_group = group});
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(group->rank(), {1, 3, 4, 4})).sum().backward();
    }
    EXPECT_EQ(net->weight.grad().strides(), net->weight.strides());
    const auto expected = (random_batch(0, {1, 3, 4, 4}) + random_batch(1, {1, 3, 4, 4})) / 2;
    auto reference = torch::ones({4, 3, 2, 2}, torch::kDouble).requires_grad_();
    torch::conv2d(expected, reference).sum().backward();
    EXPECT_LT(distance(net->weight.grad(), reference.grad()), 1e-12);
  });
}

// --- rebuilding

TEST(Ddp, BucketsAreRebuiltInTheOrderOfGradientsAndRankZeroDecides) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net(8, 3);
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
    const auto log_of = [&](const char* name) { return ddp.logging_data().text(name); };
    EXPECT_EQ(ddp.logging_data().integer("has_rebuilt_buckets"), 0);
    const auto step = [&] {
      ddp.zero_grad();
      ddp.forward(random_batch(1, {3, 4})).sum().backward();
    };
    step();
    EXPECT_EQ(ddp.logging_data().integer("has_rebuilt_buckets"), 0);
    step();
    EXPECT_EQ(ddp.logging_data().integer("has_rebuilt_buckets"), 1);
    EXPECT_EQ(log_of("rebuilt_per_bucket_param_indices"), "5 4, 3 2, 1 0");
    EXPECT_EQ(log_of("rebuilt_bucket_sizes"), "144, 576, 320");
    EXPECT_EQ(log_of("bucket_sizes"), "1040") << "one at first";
    EXPECT_EQ(log_of("prev_iteration_grad_ready_order_indices"), "5, 4, 3, 2, 1, 0");
  });
}

// Autograd runs what was computed last first: each rank has an order of its own.
TEST(Ddp, RanksWithOtherOrdersOfGradientsTakeThatOfRankZero) {
  struct Turns : torch::nn::Module {
    Turns() {
      for (const auto* name : {"a", "b", "c", "d"}) {
        weights.push_back(register_parameter(name, torch::ones({2}, torch::kDouble)));
      }
    }
    at::Tensor forward(const at::Tensor& x, const std::vector<std::size_t>& order) {
      at::Tensor sum = torch::zeros({2}, torch::kDouble);
      for (const auto each : order) sum = sum + weights[each] * x * static_cast<double>(each + 1);
      return sum;
    }
    std::vector<at::Tensor> weights;
  };
  for (const int size : {2, 3, 4}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      const auto net = std::make_shared<Turns>();
      DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 32.0 / 1048576});
      const std::vector<std::vector<std::size_t>> orders{{1, 3, 0, 2}, {0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
      const auto rank = static_cast<std::size_t>(group->rank());
      const double average = (group->size() + 1) / 2.0;
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        ddp.forward(torch::full({2}, group->rank() + 1.0, torch::kDouble), orders[rank]).sum().backward();
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(net->weights[i].grad()[0].item<double>(), average * static_cast<double>(i + 1)) << step;
        }
      }
      EXPECT_EQ(ddp.logging_data().text("rebuilt_per_bucket_param_indices"), "2 0, 3 1") << "rank 0's, last first";
      const auto& mine = ddp.logging_data().text("prev_iteration_grad_ready_order_indices");
      EXPECT_EQ(mine == "2, 0, 3, 1", rank == 0) << "the others' was another: " << mine;
    });
  }
}

TEST(Ddp, GradientsAreCopiedTogetherWhereAskedFor) {
  for (const bool is_batched : {true, false}) {
    with_torch_threads(2, [is_batched](const ProcessGroupPtr& group) {
      Mlp net(8, 3);
      DistributedDataParallel ddp(net, {.process_group = group, .batched_grad_copy = is_batched});
      const auto& early = net->linears[2]->weight;  // has its gradient before the hook below runs
      const void* seen = nullptr;
      net->linears[0]->weight.register_hook([&](const at::Tensor& /*gradient*/) { seen = early.grad().data_ptr(); });
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad(true);
        ddp.forward(random_batch(1, {3, 4})).sum().backward();
        EXPECT_EQ(seen == early.grad().data_ptr(), !is_batched) << "in the bucket's memory by then, or not yet";
      }
    });
  }
}

TEST(Ddp, FindUnusedNeverRebuildsAndStaticGraphsDoAtTheThirdForward) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto rebuilt_after = [&](DdpOptions options) {
      options.process_group = group;
      DistributedDataParallel ddp(Mlp(), options);
      std::vector<std::int64_t> flags;
      for (int i = 0; i < 4; ++i) {
        ddp.zero_grad();
        auto y = ddp.forward(random_batch(1, {3, 4}));
        flags.push_back(ddp.logging_data().integer("has_rebuilt_buckets"));
        y.sum().backward();
      }
      return flags;
    };
    EXPECT_THAT(rebuilt_after({}), ElementsAre(0, 1, 1, 1));
    EXPECT_THAT(rebuilt_after({.static_graph = true}), ElementsAre(0, 0, 1, 1));
    EXPECT_THAT(rebuilt_after({.find_unused_parameters = true}), ElementsAre(0, 0, 0, 0));
  });
}

TEST(Ddp, CapsAreThoseOfTheOptions) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto sizes = [&](DdpOptions options) {
      options.process_group = group;
      // Four layers of 0.5 MiB, last gradients first.
      torch::nn::Sequential net;
      for (int i = 0; i < 4; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(256, 512).bias(false)));
      struct Sum : torch::nn::Module {
        explicit Sum(torch::nn::Sequential its) : layers(register_module("layers", std::move(its))) {}
        at::Tensor forward(const at::Tensor& x) {
          at::Tensor sum = torch::zeros({1});
          for (auto& layer : *layers) sum = sum + layer.get<torch::nn::LinearImpl>().forward(x).sum();
          return sum;
        }
        torch::nn::Sequential layers;
      };
      DistributedDataParallel ddp(std::make_shared<Sum>(net), options);
      for (int i = 0; i < 2; ++i) ddp.forward(torch::ones({1, 256})).backward();
      return ddp.logging_data().text("rebuilt_bucket_sizes");
    };
    EXPECT_EQ(sizes({}), "1048576, 1048576") << "1 MiB, then 25";
    EXPECT_EQ(sizes({.bucket_cap_mb = 0.25}), "524288, 524288, 524288, 524288");
    const auto initial = [&](DdpOptions options) {
      options.process_group = group;
      torch::nn::Sequential net;
      for (int i = 0; i < 5; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(256, 512).bias(false)));
      return DistributedDataParallel(net, options).logging_data().text("bucket_sizes");
    };
    EXPECT_EQ(initial({}), "2621440");
    EXPECT_EQ(initial({.find_unused_parameters = true}), "1572864, 1048576") << "the small one is reduced last";
    EXPECT_EQ(initial({.bucket_cap_mb = 0.5, .find_unused_parameters = true}),
              "524288, 524288, 524288, 524288, 524288");
    torch::nn::Sequential large;
    for (int i = 0; i < 9; ++i) large->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
    DistributedDataParallel ddp(large, {.process_group = group});
    for (int i = 0; i < 2; ++i) ddp.forward(torch::ones({1, 1024})).sum().backward();
    EXPECT_EQ(ddp.logging_data().text("rebuilt_bucket_sizes"), "4194304, 29360128, 4194304");
    EXPECT_EQ(ddp.logging_data().integer("bucket_cap_bytes"), 25 << 20);
    EXPECT_EQ(sizes({.bucket_cap_mb = 1.2}), "1572864, 524288");
    EXPECT_EQ(sizes({.bucket_caps_mb = {0.5, 1.5}}), "524288, 1572864");
    ::setenv("DDP_SET_LAST_BUCKET_CAP", "1", 1);
    EXPECT_EQ(sizes({.bucket_caps_mb = {0.5, 1.5}}), "1572864, 524288");
    ::unsetenv("DDP_SET_LAST_BUCKET_CAP");
    EXPECT_ERROR(ValueError, sizes({.bucket_cap_mb = 0}), "MiB");
  });
}

// --- refusals

TEST(DdpRefuses, WhatConstructionCannotTake) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    EXPECT_ERROR(ValueError, DistributedDataParallel(Scale(), {}), "no process group");
    {
      const ProcessGroupGuard current(group);
      EXPECT_NO_THROW(DistributedDataParallel(Scale(), {}));
    }
    Scale frozen;
    frozen->weight.requires_grad_(false);
    EXPECT_ERROR(Error, DistributedDataParallel(frozen, {.process_group = group}), "not needed");
    EXPECT_ERROR(ValueError,
                 DistributedDataParallel(Scale(), {.process_group = group, .device_ids = {at::kCPU, at::kCPU}}),
                 "names 2 devices");
    EXPECT_ERROR(ValueError, DistributedDataParallel(Scale(), {.process_group = group, .device_ids = {at::kCPU}}),
                 "on the host");
    EXPECT_ERROR(ValueError, DistributedDataParallel(Scale(), {.process_group = group, .output_device = at::kCPU}),
                 "on the host");
    EXPECT_ERROR(ValueError,
                 DistributedDataParallel(Scale(), {.process_group = group, .delay_until = torch::ones({1})}),
                 "together");
    Branches delays;
    EXPECT_ERROR(
        ValueError,
        DistributedDataParallel(delays, {.process_group = group, .delay_all_reduce_named_params = {{"b", delays->b}}}),
        "together");
    EXPECT_ERROR(ValueError,
                 DistributedDataParallel(delays, {.process_group = group,
                                                  .delay_all_reduce_named_params = {{"b", delays->b}},
                                                  .delay_until = torch::ones({1})}),
                 "not a parameter that gets a gradient");
    // What libtorch has in place of Python's lazy parameters.
    struct Unmade : torch::nn::Module {
      Unmade() { weight = register_parameter("weight", torch::empty({1}, torch::device(torch::kMeta))); }
      at::Tensor forward(const at::Tensor& x) { return weight * x; }
      at::Tensor weight;
    };
    EXPECT_ERROR(Error, DistributedDataParallel(std::make_shared<Unmade>(), {.process_group = group}),
                 "parameter weight is on device meta");
    struct OnTwoTypes : Unmade {
      OnTwoTypes() { bias = register_parameter("bias", torch::ones({1})); }
      at::Tensor bias;
    };
    EXPECT_ERROR(ValueError, DistributedDataParallel(std::make_shared<OnTwoTypes>(), {.process_group = group}),
                 "on devices of several types");
    EXPECT_ERROR(ValueError, DistributedDataParallel(std::shared_ptr<ScaleImpl>(), {.process_group = group}),
                 "no module");
    EXPECT_ERROR(ValueError,
                 DistributedDataParallel(Scale(), {.process_group = group, .bucket_cap_mb = 1, .bucket_caps_mb = {1}}),
                 "exclude each other");
  });
}

TEST(DdpRefuses, ReplicasThatDiffer) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const bool odd = group->rank() == 1;
    const DdpOptions options{.process_group = group};
    EXPECT_ERROR(Error, DistributedDataParallel(Mlp(8, odd ? 2 : 3), options), "rank 1 has 4 parameters, rank 0 has 6");
    EXPECT_ERROR(Error, DistributedDataParallel(Scale(1, odd ? 2 : 1), options), "parameter 0 (weight) differs");
    Scale half;
    if (odd) half->to(torch::kFloat);
    EXPECT_ERROR(Error, DistributedDataParallel(half, options), "Float");
    struct Strided : torch::nn::Module {
      explicit Strided(bool is_other) {
        auto w = torch::ones({2, 3});
        weight = register_parameter("weight", is_other ? w.t().contiguous().t() : w);
      }
      at::Tensor forward(const at::Tensor& x) { return weight * x; }
      at::Tensor weight;
    };
    EXPECT_ERROR(Error, DistributedDataParallel(std::make_shared<Strided>(odd), options), "strides");
  });
}

TEST(Ddp, IgnoredParametersAndBuffersAreLeftAlone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    net->register_buffer("own", torch::full({1}, group->rank(), torch::kDouble));
    {
      const torch::NoGradGuard no_grad;
      net->b.fill_(group->rank() + 1.0);
    }
    DistributedDataParallel ddp(net, {.process_group = group, .ignored = {"b", "own"}});
    EXPECT_EQ(net->b.item<double>(), group->rank() + 1.0);
    ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble), true).sum().backward();
    EXPECT_EQ(grad_of(net->a), 1.5);
    EXPECT_EQ(grad_of(net->b), group->rank() + 1.0) << "its own";
    EXPECT_EQ(net->named_buffers()["own"].item<double>(), group->rank());
  });
}

TEST(Ddp, NamesOfNestedModulesCanBeIgnored) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net;
    fill(*net, group->rank());
    const auto own = net->linears[1]->weight.clone();
    DistributedDataParallel ddp(net, {.process_group = group, .ignored = {"layer1.weight"}});
    EXPECT_EQ(ddp.managed_parameters().size(), 5U);
    EXPECT_TRUE(torch::equal(net->linears[1]->weight, own));
    ddp.forward(random_batch(group->rank(), {3, 4})).sum().backward();
    const auto all = all_gather_async(*group, net->linears[1]->weight.grad()).value();
    EXPECT_FALSE(torch::equal(all[0], all[1]));
  });
}

TEST(Ddp, DelayedParametersAreAveragedBeforeBackwardReturns) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    for (const bool all : {false, true}) {
      Branches net;
      std::vector<std::pair<std::string, at::Tensor>> delayed{{"b", net->b}};
      if (all) delayed.emplace_back("a", net->a);
      {
        const torch::NoGradGuard no_grad;
        net->b.fill_(group->rank() + 1.0);
      }
      DistributedDataParallel ddp(
          net, {.process_group = group, .delay_all_reduce_named_params = delayed, .delay_until = net->b});
      EXPECT_EQ(net->b.item<double>(), 1.0) << "sent at construction";
      for (int i = 0; i < 4; ++i) {
        for (auto& each : net->parameters()) each.mutable_grad() = at::Tensor();
        const auto y = ddp.forward(x, true);
        // Dropped again, after the wrapper has given them their place.
        if (i == 3) {
          for (auto& each : net->parameters()) each.mutable_grad() = at::Tensor();
        }
        y.sum().backward();
        EXPECT_EQ(grad_of(net->b), 1.5) << all;
        EXPECT_EQ(grad_of(net->a), 1.5);
      }
    }
  });
}

// --- graphs

TEST(Ddp, CreateGraphAveragesValues) {
  const LogCount warnings("backward with create_graph");
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    (ddp.forward(x) * net->weight).sum().backward({}, true, true);
    EXPECT_EQ(grad_of(net->weight), 3.0);
  });
  EXPECT_EQ(warnings.value(), 2) << "once on each rank";
}

TEST(Ddp, SinkClonesCanBeSwitchedOff) {
  struct Keeps : ScaleImpl {
    at::Tensor forward(const at::Tensor& x) { return last = ScaleImpl::forward(x); }
    at::Tensor last;
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Keeps>();
    DistributedDataParallel ddp(net, {.process_group = group, .find_unused_parameters = true});
    const auto x = torch::ones({1}, torch::kDouble);
    auto y = ddp.forward(x);
    EXPECT_NE(y.data_ptr(), net->last.data_ptr());
    EXPECT_NO_THROW(y.mul_(2));
    y.sum().backward();
    EXPECT_EQ(grad_of(net->weight), 2.0);
    ddp.set_sink_clone(false);
    ddp.zero_grad();
    auto z = ddp.forward(x);
    EXPECT_EQ(z.data_ptr(), net->last.data_ptr());
    EXPECT_THROW(z.mul_(2), c10::Error);
    z.sum().backward();
    EXPECT_EQ(grad_of(net->weight), 1.0);
  });
}

}  // namespace
}  // namespace cohort::test
