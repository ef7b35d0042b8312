// SPDX-License-Identifier: BSD-3-Clause
//
// DistributedDataParallel: what it makes of gradients, buffers and mistakes.
#include "torch/ddp_test.h"

#include <cohort/current_group.h>
#include <cohort/debug_level.h>
#include <cohort/torch/hooks.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>

#include "torch/ddp/bucket_assignment.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ddp::AssignedBucket;
using ddp::TensorInfo;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// --- buckets

TensorInfo floats(std::size_t count) {
  return {.bytes = 4 * count};
}
TensorInfo doubles(std::size_t count) {
  return {.bytes = 8 * count, .dtype = at::kDouble};
}
std::string show(const std::vector<AssignedBucket>& buckets) {
  std::string text;
  for (const auto& bucket : buckets) {
    text += "[";
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      text += (i > 0 ? "," : "") + std::to_string(bucket.parameters[i]);
    }
    text += "]" + std::to_string(bucket.limit) + " ";
  }
  return text;
}

TEST(DdpBuckets, AreAssignedAsInTheSpecification) {
  const auto assign = [](const std::vector<TensorInfo>& tensors, const std::vector<std::size_t>& limits) {
    return show(ddp::assign_buckets(tensors, limits));
  };
  EXPECT_EQ(assign({floats(100), floats(200), floats(100), floats(50)}, {400}), "[0]400 [1]400 [2]400 [3]400 ");
  EXPECT_EQ(assign({floats(50), doubles(25), floats(50), doubles(25), floats(50), doubles(25)}, {400}),
            "[0,2]400 [1,3]400 [4]400 [5]400 ");
  EXPECT_EQ(assign({floats(10), floats(10), floats(10), floats(10)}, {40, 80}), "[0]40 [1,2]80 [3]80 ");
  EXPECT_EQ(assign({floats(50), doubles(25), floats(50), doubles(25), floats(50), doubles(25)}, {200, 400}),
            "[0]200 [1]200 [2,4]400 [3,5]400 ");
}

TEST(DdpBuckets, HoldEachParameterOnceInOneTypeAndCloseAtTheirLimit) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorInfo> tensors(random() % 40);
    for (auto& each : tensors) {
      each = random() % 2 == 0 ? floats(random() % 100) : doubles(random() % 100);
      each.is_sparse = random() % 10 == 0;
    }
    const std::vector<std::size_t> limits{random() % 300 + 1, random() % 900 + 1};
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    const auto buckets = ddp::assign_buckets(tensors, limits, round % 2 == 0 ? order : std::vector<std::size_t>{});
    EXPECT_EQ(ddp::buckets_from_bytes(ddp::to_bytes(buckets), tensors.size()), buckets) << "each once";
    for (const auto& bucket : buckets) {
      std::size_t bytes = 0;
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const auto& tensor = tensors[bucket.parameters[i]];
        EXPECT_EQ(tensor.dtype, tensors[bucket.parameters[0]].dtype);
        EXPECT_TRUE(!tensor.is_sparse || bucket.parameters.size() == 1);
        EXPECT_TRUE(bucket.limit == 0 || bytes < bucket.limit) << "closed by the one that fills it";
        bytes += tensor.bytes;
      }
    }
  }
  EXPECT_ERROR(IndexError, ddp::buckets_from_bytes("", 1), "rank 0");
  EXPECT_ERROR(IndexError, ddp::buckets_from_bytes(ddp::to_bytes(std::vector<AssignedBucket>{{.parameters = {3}}}), 1),
               "parameter that there is not");
}

// --- averages

TEST(Ddp, ConstructionMakesReplicasEqual) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    Mlp net;
    fill(*net, 100 + group->rank());
    net->register_buffer("steps", torch::full({2}, group->rank(), torch::kLong));
    DistributedDataParallel ddp(net, {.process_group = group});
    Mlp expected;
    fill(*expected, 100);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(net->parameters()[i], expected->parameters()[i])) << i;
    }
    EXPECT_TRUE(torch::equal(net->named_buffers()["steps"], torch::zeros({2}, torch::kLong)));
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

/// Trains an Mlp on shards of a batch, and another on all of it; they must not drift apart.
void expect_same_as_one_process(const ProcessGroupPtr& group, DdpOptions options, int steps) {
  options.process_group = group;
  Mlp net(16, 4);
  fill(*net, 1 + group->rank());
  DistributedDataParallel ddp(net, options);
  Mlp whole(16, 4);
  fill(*whole, 1);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD reference(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    const auto n = group->size();
    const auto x = random_batch(step, {4 * n, 4});
    const auto y = random_batch(1000 + step, {4 * n, 2});
    optimizer.zero_grad();
    torch::mse_loss(ddp.forward(x.narrow(0, 4 * group->rank(), 4)), y.narrow(0, 4 * group->rank(), 4)).backward();
    optimizer.step();
    reference.zero_grad();
    torch::mse_loss(whole->forward(x), y).backward();
    reference.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_LT(distance(net->parameters()[i], whole->parameters()[i]), 1e-10) << "parameter " << i;
  }
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
    at::Tensor forward(double x) { return (a * x).sum() + (b * x).sum() + torch::real(c * x).sum() + none.sum(); }
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

TEST(Ddp, NoSyncAccumulatesAndTheNextStepReducesTheSum) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
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
      return ready(bucket.buffer());
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
    EXPECT_EQ(sizes({.bucket_cap_mb = 1.2}), "1572864, 524288");
    EXPECT_EQ(sizes({.bucket_caps_mb = {0.5, 1.5}}), "524288, 1572864");
    ::setenv("DDP_SET_LAST_BUCKET_CAP", "1", 1);
    EXPECT_EQ(sizes({.bucket_caps_mb = {0.5, 1.5}}), "1572864, 524288");
    ::unsetenv("DDP_SET_LAST_BUCKET_CAP");
    EXPECT_ERROR(ValueError, sizes({.bucket_cap_mb = 0}), "MiB");
  });
}

// --- unused parameters

/// Two branches; what is used is told from outside.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_parameter("a", torch::ones({1}, torch::kDouble));
    b = register_parameter("b", torch::ones({1}, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x, bool uses_b) { return uses_b ? a * x + b * x : a * x; }
  at::Tensor a, b;
};
TORCH_MODULE(Branches);

TEST(DdpUnused, IsAnErrorAtTheNextForwardThatNamesTheParameter) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, false).sum().backward();
    EXPECT_ERROR(Error, ddp.check_reducer_finalized(), "parameters 1 got no gradient");
    EXPECT_ERROR(Error, ddp.forward(x, true), "find_unused_parameters");
    set_debug_level(DebugLevel::info);
    EXPECT_ERROR(Error, ddp.forward(x, true), "1 (b)");
    set_debug_level(DebugLevel::off);
    EXPECT_EQ(ddp.logging_data().integer("has_error"), 1);
    EXPECT_THAT(ddp.logging_data().text("error"), HasSubstr("did not finish"));
    ddp.update_process_group(group);
    ddp.zero_grad();
    ddp.forward(x, true).sum().backward();
    EXPECT_EQ(grad_of(net->b), 1.0) << "and goes on after a reset";
  });
}

TEST(DdpUnused, UsedByOneRankGetsTheAverageAndByNobodyKeepsItsGradient) {
  for (const bool as_view : {true, false}) {
    with_torch_threads(2, [as_view](const ProcessGroupPtr& group) {
      Branches net;
      DistributedDataParallel ddp(
          net, {.process_group = group, .find_unused_parameters = true, .gradient_as_bucket_view = as_view});
      const auto x = torch::ones({1}, torch::kDouble);
      ddp.forward(x, false).sum().backward();
      EXPECT_FALSE(net->b.grad().defined()) << "nobody used it";
      ddp.zero_grad();
      ddp.forward(x, group->rank() == 0).sum().backward();
      EXPECT_EQ(grad_of(net->b), 0.5);
      net->b.mutable_grad() = torch::full({1}, 7.0, torch::kDouble);
      ddp.forward(x, false).sum().backward();
      EXPECT_EQ(grad_of(net->b), 7.0);
    });
  }
}

TEST(DdpUnused, ASearchThatFindsNothingIsToldOnce) {
  const LogCount warnings("forward used all of them");
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Scale(), {.process_group = group, .find_unused_parameters = true});
    for (int i = 0; i < 3; ++i) ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
  });
  EXPECT_EQ(warnings.value(), 1);
}

struct TwoOutputs {
  at::Tensor first, second;
  void visit_tensors(auto&& visit) {
    visit(first);
    visit(second);
  }
};

/// Gives both branches in a container; the loss uses the first alone.
template <class Result>
struct Gives : BranchesImpl {
  Result forward(const at::Tensor& x) { return pack(a * x, b * x); }
  static Result pack(const at::Tensor& first, const at::Tensor& second) {
    if constexpr (std::is_same_v<Result, std::map<std::string, at::Tensor>>) {
      return {{"first", first}, {"second", second}};
    } else if constexpr (std::is_same_v<Result, std::tuple<at::Tensor, std::vector<std::optional<at::Tensor>>>>) {
      return {first, {second, std::nullopt}};
    } else {
      return {first, second};
    }
  }
};

template <class Result>
void expect_found_in(const ProcessGroupPtr& group, const std::function<at::Tensor(Result&)>& first) {
  const auto net = std::make_shared<Gives<Result>>();
  DistributedDataParallel ddp(net, {.process_group = group, .find_unused_parameters = true});
  for (int i = 0; i < 2; ++i) {
    ddp.zero_grad();
    auto result = ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble));
    first(result).sum().backward();
    EXPECT_EQ(grad_of(net->a), 1.5);
  }
}

TEST(DdpUnused, OutputsThatTheLossDoesNotUseAreHandledInEveryContainer) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    using Pair = std::pair<at::Tensor, at::Tensor>;
    using Tuple = std::tuple<at::Tensor, at::Tensor>;
    using Vector = std::vector<at::Tensor>;
    using Map = std::map<std::string, at::Tensor>;
    using Nested = std::tuple<at::Tensor, std::vector<std::optional<at::Tensor>>>;
    expect_found_in<Pair>(group, [](Pair& r) { return r.first; });
    expect_found_in<Tuple>(group, [](Tuple& r) { return std::get<0>(r); });
    expect_found_in<Vector>(group, [](Vector& r) { return r[0]; });
    expect_found_in<Map>(group, [](Map& r) { return r["first"]; });
    expect_found_in<Nested>(group, [](Nested& r) { return std::get<0>(r); });
    expect_found_in<TwoOutputs>(group, [](TwoOutputs& r) { return r.first; });
  });
}

TEST(DdpUnused, WithoutTheSearchAnUnusedOutputIsAnError) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(std::make_shared<Gives<std::vector<at::Tensor>>>(), {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x)[0].sum().backward();
    EXPECT_ERROR(Error, ddp.forward(x), "got no gradient");
  });
}

/// Tensors that nobody finds.
struct Opaque {
  explicit Opaque(at::Tensor its) : hidden(std::move(its)) {}
  at::Tensor hidden;
};

/// What it gives back is known when it is called.
struct HidesLate : BranchesImpl {
  template <class T>
  Opaque forward(const T& x) {
    return Opaque(a * x + b * x);
  }
};

TEST(DdpUnused, ResultsWhoseTensorsCannotBeFoundAreRefusedWhereTheyMatter) {
  struct Hides : BranchesImpl {
    Opaque forward(const at::Tensor& x) { return Opaque(a * x + b * x); }
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    EXPECT_ERROR(
        ValueError,
        DistributedDataParallel(std::make_shared<Hides>(), {.process_group = group, .find_unused_parameters = true}),
        "visit_tensors");
    DistributedDataParallel fine(std::make_shared<Hides>(), {.process_group = group});
    fine.forward(torch::ones({1}, torch::kDouble)).hidden.sum().backward();
    DistributedDataParallel late(std::make_shared<HidesLate>(), {.process_group = group, .static_graph = true});
    EXPECT_ERROR(ValueError, late.forward(torch::ones({1}, torch::kDouble)), "visit_tensors");
  });
}

TEST(DdpUnused, BucketsOfUnusedParametersCanBeSkipped) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group,
                                      .bucket_cap_mb = 0.000001,
                                      .find_unused_parameters = true,
                                      .skip_all_reduce_unused_params = true});
    const auto x = torch::ones({1}, torch::kDouble);
    for (int i = 0; i < 3; ++i) ddp.forward(x, false).sum().backward();
    ddp.forward(x, false);
    EXPECT_EQ(ddp.logging_data().integer("num_buckets_reduced"), 3);
    EXPECT_EQ(grad_of(net->a), 3.0);
  });
}

// --- static graphs

/// Has a backward of its own, of something that uses `w`, inside the backward that it is part of.
struct Reenters : torch::autograd::Function<Reenters> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({w});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode enabled(true);
    (context->get_saved_variables()[0] * 2).sum().backward();
    return {gradients[0], at::Tensor()};
  }
};

TEST(DdpStatic, ReentrantBackwardsAreFine) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    for (int i = 0; i < 4; ++i) {
      ddp.zero_grad();
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      Reenters::apply(ddp.forward(x, true), net->a).sum().backward();
      EXPECT_EQ(grad_of(net->a), 3.5) << "2 by itself, and the average of 1 and 2";
      EXPECT_EQ(grad_of(net->b), 1.5);
    }
  });
}

TEST(DdpStatic, UnusedParametersAreLearntAndUsesOutsideForwardAreFine) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    for (int i = 0; i < 5; ++i) {
      ddp.zero_grad();
      (ddp.forward(x, false).sum() + net->a.sum() * 2).backward();
      EXPECT_EQ(grad_of(net->a), 3.5) << i;
      EXPECT_FALSE(net->b.grad().defined());
    }
  });
}

TEST(DdpStatic, SeveralForwardsBeforeABackward) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    for (int i = 0; i < 4; ++i) {
      ddp.zero_grad();
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      (ddp.forward(x) + ddp.forward(2 * x)).sum().backward();
      EXPECT_EQ(grad_of(net->weight), 4.5);
    }
  });
}

TEST(DdpStatic, ChangesAreDetectedAndLateOrDoubleSettingIsTold) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.set_static_graph();
    ddp.set_static_graph();  // a warning
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, true).sum().backward();
    ddp.forward(x, true).sum().backward();
    EXPECT_ERROR(Error, Reenters::apply(ddp.forward(x, true), net->a).sum().backward(), "training graph has changed");
    DistributedDataParallel late(Branches(), {.process_group = group});
    late.forward(x, true).sum().backward();
    EXPECT_ERROR(Error, late.set_static_graph(), "before the first forward");
  });
}

TEST(DdpStatic, TheFirstIterationMayBeWithoutSync) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    {
      const auto local = ddp.no_sync();
      ddp.forward(x).sum().backward();
    }
    EXPECT_EQ(grad_of(net->weight), group->rank() + 1.0);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net->weight), 3.0);
  });
}

TEST(DdpStatic, GivesHooksTheirBucketsRealIndices) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    Mlp net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    net->to(torch::kDouble);
    std::vector<std::size_t> indices;
    std::size_t last = 0;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      indices.push_back(bucket.index());
      last += bucket.is_last() ? 1 : 0;
      return ready(bucket.buffer());
    });
    ddp.forward(random_batch(1, {2, 4})).sum().backward();
    EXPECT_THAT(indices, ElementsAre(0));
    EXPECT_EQ(last, 1U);
  });
}

TEST(Ddp, AParameterUsedOutsideForwardIsReadyTwice) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto y = Reenters::apply(ddp.forward(torch::ones({1}, torch::kDouble), true), net->a);
    EXPECT_ERROR(Error, y.sum().backward(), "0 (a) got its gradient twice");
  });
}

// --- buffers

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

TEST(DdpBuffersOf, AHookMayReplaceTheBroadcast) {
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(2, [when](const ProcessGroupPtr& group) {
      Counts net;
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& buffers) {
            const auto& count = buffers.at("count");
            return std::vector<Future<void>>{reduced(*group, count).then([](const at::Tensor&) {})};
          },
          when);
      net->count.fill_(group->rank() + 1.0);
      ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
      EXPECT_EQ(net->count.item<double>(), 3.0) << "awaited when backward has ended";
    });
  }
}

// --- hooks

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
      return reduced(*group, bucket.buffer()).then([](const at::Tensor& all) { return all * 10; });
    });
    EXPECT_EQ(ddp.logging_data().text("comm_hook"), "custom");
    EXPECT_ERROR(Error, ddp.register_comm_hook([](GradBucket& bucket) { return ready(bucket.buffer()); }), "already");
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
    wrong.register_comm_hook([](GradBucket&) { return ready(torch::ones({5})); });
    EXPECT_ERROR(Error, wrong.forward(x).sum().backward(), "gave back 5 elements");
  });
}

TEST(Ddp, CommunicationOverlapsBackwardInOrder) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net(64, 6);
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.01});
    std::vector<std::size_t> order;
    std::vector<bool> first_layer_was_there;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      order.push_back(bucket.index());
      first_layer_was_there.push_back(net->linears[0]->weight.grad().defined());
      return reduced(*group, bucket.buffer());
    });
    for (int i = 0; i < 3; ++i) {
      for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
      order.clear();
      first_layer_was_there.clear();
      ddp.forward(random_batch(i, {4, 4})).sum().backward();
    }
    ASSERT_GE(order.size(), 3U);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    EXPECT_FALSE(first_layer_was_there.front()) << "while the first layer's gradient was still to come";
  });
}

TEST(DdpHook, ThoseOfTheLibraryAverage) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const bool is_narrow : {false, true}) {
      Scale net(1, 4);
      net->to(torch::kFloat);
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_comm_hook(is_narrow ? hooks::bf16_compress(group) : hooks::allreduce(group));
      EXPECT_THAT(ddp.logging_data().text("comm_hook"), HasSubstr(is_narrow ? "bf16" : "allreduce"));
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad();
        ddp.forward(torch::full({4}, static_cast<float>(group->rank() + 1))).sum().backward();
        EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({4}, 1.5F)));
      }
    }
  });
}

TEST(DdpFused, OptimizersStepAsOneAfterBackwardWould) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp fused_net;
    Mlp plain;
    fill(*fused_net, 1);
    fill(*plain, 1);
    DistributedDataParallel a(fused_net, {.process_group = group, .bucket_cap_mb = 0.0001});
    DistributedDataParallel b(plain, {.process_group = group});
    a.register_fused_optimizer(make_functional(fused::AdamW{.lr = 0.01}), {}, true);
    EXPECT_ERROR(Error, a.register_fused_optimizer(make_functional(fused::SGD{})), "already");
    EXPECT_ERROR(Error, a.register_comm_hook(hooks::allreduce(group)), "fused");
    torch::optim::AdamW optimizer(b.parameters(), torch::optim::AdamWOptions(0.01));
    for (int i = 0; i < 10; ++i) {
      const auto x = random_batch(10 * i + group->rank(), {3, 4});
      a.forward(x).pow(2).mean().backward();
      optimizer.zero_grad();
      b.forward(x).pow(2).mean().backward();
      optimizer.step();
      EXPECT_FALSE(fused_net->parameters()[0].grad().defined()) << "used and gone";
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT_LT(distance(fused_net->parameters()[i], plain->parameters()[i]), 1e-12);
    }
  });
}

TEST(DdpFused, ASubsetOfTheParametersMayBeChosen) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.register_fused_optimizer(make_functional(fused::SGD{.lr = 1}), {net->a});
    ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble), true).sum().backward();
    EXPECT_EQ(net->a.item<double>(), -0.5);
    EXPECT_EQ(net->b.item<double>(), 1.0);
    DistributedDataParallel other(Branches(), {.process_group = group});
    EXPECT_ERROR(ValueError, other.register_fused_optimizer(make_functional(fused::SGD{}), {net->a}),
                 "does not reduce");
  });
}

// --- sparse gradients

TEST(DdpSparse, GradientsOfEmbeddingsAreAveraged) {
  struct Looks : torch::nn::Module {
    Looks()
        : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)))),
          line(register_module("line", torch::nn::Linear(2, 1))) {}
    at::Tensor forward(const at::Tensor& words) { return line->forward(table->forward(words)); }
    torch::nn::Embedding table;
    torch::nn::Linear line;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Looks>();
    const auto whole = std::make_shared<Looks>();
    {
      const torch::NoGradGuard no_grad;
      for (const auto& each : {net, whole}) {
        fill(*each, 3);
      }
    }
    DistributedDataParallel ddp(net, {.process_group = group});
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
      for (auto& each : whole->parameters()) each.mutable_grad() = at::Tensor();
      const auto words = torch::tensor({0, 2, 2, 5}, torch::kLong);
      ddp.forward(words.narrow(0, 2 * group->rank(), 2)).mean().backward();
      whole->forward(words).mean().backward();
      EXPECT_TRUE(net->table->weight.grad().is_sparse());
      EXPECT_LT(distance(net->table->weight.grad().to_dense(), whole->table->weight.grad().to_dense()), 1e-6);
      EXPECT_LT(distance(net->line->weight.grad(), whole->line->weight.grad()), 1e-6);
    }
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
    EXPECT_ERROR(ValueError,
                 DistributedDataParallel(Scale(), {.process_group = group, .delay_until = torch::ones({1})}),
                 "together");
    EXPECT_ERROR(ValueError, DistributedDataParallel(std::shared_ptr<ScaleImpl>(), {.process_group = group}),
                 "no module");
    EXPECT_ERROR(ValueError,
                 DistributedDataParallel(Scale(), {.process_group = group, .bucket_cap_mb = 1, .bucket_caps_mb = {1}}),
                 "one of them");
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

TEST(Ddp, DelayedParametersAreAveragedBeforeBackwardReturns) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    for (const bool all : {false, true}) {
      Branches net;
      std::vector<std::pair<std::string, at::Tensor>> delayed{{"b", net->b}};
      if (all) delayed.emplace_back("a", net->a);
      DistributedDataParallel ddp(
          net, {.process_group = group, .delay_all_reduce_named_params = delayed, .delay_until = net->b});
      for (int i = 0; i < 3; ++i) {
        for (auto& each : net->parameters()) each.mutable_grad() = at::Tensor();
        ddp.forward(x, true).sum().backward();
        EXPECT_EQ(grad_of(net->b), 1.5) << all;
        EXPECT_EQ(grad_of(net->a), 1.5);
      }
    }
  });
}

// --- ends and new beginnings

TEST(Ddp, WithoutHooksTheParametersTrainAlone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.remove_autograd_hooks();
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net->weight), group->rank() + 1.0);
    // And the module can be wrapped anew.
    net->zero_grad();
    DistributedDataParallel again(net, {.process_group = group});
    again.forward(x).sum().backward();
    EXPECT_EQ(grad_of(net->weight), 1.5);
  });
}

TEST(Ddp, GoesOnWithAnotherGroupAfterAFailure) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto pair = group->split_group({0, 1});
    const auto three = group->split_group({0, 1, 2});
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    const auto step = [&] {
      net->weight.mutable_grad() = at::Tensor();
      ddp.forward(x).sum().backward();
      return grad_of(net->weight);
    };
    EXPECT_EQ(step(), 2.5);
    group->abort("a drill");
    EXPECT_THROW(step(), Error);
    ddp.update_process_group(pair);
    EXPECT_EQ(pair != nullptr ? step() : 1.5, 1.5);
    ddp.update_process_group(three);
    if (three != nullptr) {
      EXPECT_EQ(step(), 2.0);
      EXPECT_EQ(step(), 2.0);
      EXPECT_EQ(ddp.logging_data().integer("world_size"), 3);
    }
  });
}

TEST(Ddp, CreateGraphAveragesValues) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
    (ddp.forward(x) * net->weight).sum().backward({}, true, true);
    EXPECT_EQ(grad_of(net->weight), 3.0);
  });
}

TEST(Ddp, SinkClonesCanBeSwitchedOff) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Scale(), {.process_group = group, .find_unused_parameters = true});
    const auto x = torch::ones({1}, torch::kDouble);
    auto y = ddp.forward(x);
    EXPECT_NO_THROW(y.mul_(2));
    y.sum().backward();
    EXPECT_EQ(grad_of(ddp.module()->weight), 2.0);
    ddp.set_sink_clone(false);
    ddp.zero_grad();
    ddp.forward(x).sum().backward();
    EXPECT_EQ(grad_of(ddp.module()->weight), 1.0);
  });
}

// --- mixed precision

TEST(DdpMixedPrecision, ComputesInOneTypeAndKeepsParametersInTheirOwn) {
  struct Looks : torch::nn::Module {
    Looks() {
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
    const auto net = std::make_shared<Looks>();
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
    EXPECT_ERROR(Error, ddp.register_comm_hook([](GradBucket& bucket) { return ready(bucket.buffer()); }),
                 "one for each");
  });
}

// --- logging

TEST(DdpLog, ShowsWhenEachBucketWasReduced) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    ddp.record_timeline();
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
    }
    const auto json = ddp.timeline_json();
    for (const auto* const each : {"forward", "backward", "bucket 0", "bucket 1", "bucket 2", "communication"}) {
      EXPECT_THAT(json, HasSubstr(each));
    }
  });
}

TEST(DdpLog, TellsHowItWasMadeAndHowItGoes) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 2});
    const auto made = ddp.logging_data();
    EXPECT_EQ(made.integer("world_size"), 2);
    EXPECT_EQ(made.integer("rank"), group->rank());
    EXPECT_EQ(made.integer("bucket_cap_bytes"), 2 << 20);
    EXPECT_EQ(made.integer("num_parameter_tensors"), 6);
    EXPECT_EQ(made.integer("total_parameter_size_bytes"), 1040);
    EXPECT_EQ(made.integer("output_device"), -1);
    EXPECT_EQ(made.integer("gradient_as_bucket_view"), 1);
    EXPECT_EQ(made.text("backend_name"), "thread");
    EXPECT_EQ(made.text("master_addr"), "N/A");
    EXPECT_THAT(made.text("module_name"), HasSubstr("Mlp"));
    EXPECT_THAT(to_json(made), HasSubstr("\"world_size\": 2"));
    EXPECT_ERROR(ValueError, ddp.set_logging_sample_rate(0), "sample rate");
    ddp.set_logging_sample_rate(4);
    std::vector<std::int64_t> sampled;
    for (int i = 1; i <= 20; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
      sampled.push_back(ddp.logging_data().integer("iteration"));
    }
    EXPECT_EQ(sampled[4], 4);
    EXPECT_EQ(sampled[19], 16);
    const auto log = ddp.logging_data();
    for (const auto* const name : {"forward_compute_time", "backward_compute_time", "backward_comm_time"}) {
      EXPECT_GT(log.integer(name), 0) << name;
      EXPECT_GT(log.integer(std::string("avg_") + name), 0) << name;
    }
    EXPECT_LE(log.integer("backward_comm_time_start"), log.integer("backward_comm_time_end"));
  });
}

TEST(DdpLog, SaysWhetherTheGraphLooksStatic) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Branches(), {.process_group = group, .find_unused_parameters = true});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, true).sum().backward();
    EXPECT_EQ(ddp.logging_data().integer("can_set_static_graph"), 1);
    ddp.forward(x, false).sum().backward();
    EXPECT_EQ(ddp.logging_data().integer("can_set_static_graph"), 0);
  });
}

}  // namespace
}  // namespace cohort::test
