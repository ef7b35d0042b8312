// SPDX-License-Identifier: BSD-3-Clause
//
// Parameters that are not used, and graphs that stay the same.
#include <map>
#include <optional>
#include <tuple>

#include "support/debug_level_scope.h"
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- unused parameters

TEST(DdpUnused, IsAnErrorAtTheNextForwardThatNamesTheParameter) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, false).sum().backward();
    EXPECT_ERROR(Error, ddp.check_reducer_finalized(), "parameters 1 got no gradient");
    EXPECT_EQ(ddp.logging_data().integer("has_error"), 1);
    EXPECT_ERROR(Error, ddp.forward(x, true), "find_unused_parameters");
    EXPECT_EQ(ddp.logging_data().integer("has_error"), 1);
    EXPECT_THAT(ddp.logging_data().text("error"), HasSubstr("did not finish"));
    ddp.update_process_group(group);
    ddp.zero_grad();
    ddp.forward(x, true).sum().backward();
    EXPECT_EQ(grad_of(net->b), 1.0) << "and goes on after a reset";
  });
}

TEST(DdpUnused, IsNamedWhenDebugging) {
  // The level is the process's, so it is set around the ranks, which are threads.
  const DebugLevelScope debug(DebugLevel::info);
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, false).sum().backward();
    EXPECT_ERROR(Error, ddp.forward(x, true), "1 (b)");
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

TEST(DdpUnused, AGradientThatNobodyUsedKeepsItsBits) {
  for (const bool as_view : {true, false}) {
    for (const bool is_static : {true, false}) {
      for (const bool skips : {true, false}) {
        with_torch_threads(3, [&](const ProcessGroupPtr& group) {
          Branches net;
          net->b.mutable_grad() = torch::full({1}, 7.1 + group->rank(), torch::kDouble);
          DistributedDataParallel ddp(net, {.process_group = group,
                                            .bucket_cap_mb = 0.000001,
                                            .find_unused_parameters = !is_static,
                                            .gradient_as_bucket_view = as_view,
                                            .static_graph = is_static,
                                            .skip_all_reduce_unused_params = skips});
          for (int i = 0; i < 4; ++i) {
            ddp.forward(torch::ones({1}, torch::kDouble), false).sum().backward();
            EXPECT_EQ(grad_of(net->b), 7.1 + group->rank());
          }
        });
      }
    }
  }
}

TEST(DdpUnused, WhatIsUsedInNoSyncCounts) {
  for (const bool as_view : {true, false}) {
    with_torch_threads(2, [as_view](const ProcessGroupPtr& group) {
      Branches net;
      DistributedDataParallel ddp(
          net, {.process_group = group, .find_unused_parameters = true, .gradient_as_bucket_view = as_view});
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      {
        const auto local = ddp.no_sync();
        ddp.forward(x, true).sum().backward();
      }
      ddp.forward(x, false).sum().backward();
      EXPECT_EQ(grad_of(net->b), 1.5);
      EXPECT_EQ(grad_of(net->a), 3.0);
    });
  }
}

TEST(DdpUnused, ASearchThatFindsNothingIsToldOnce) {
  const LogCount warnings("forward used all parameters");
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

/// A tensor that the search did not see would be counted as unused, and its gradient would be one too many.
template <class Result>
void expect_found_in(const ProcessGroupPtr& group, const std::function<at::Tensor(Result&)>& first,
                     const std::function<at::Tensor(Result&)>& second) {
  const auto net = std::make_shared<Gives<Result>>();
  DistributedDataParallel ddp(net, {.process_group = group, .find_unused_parameters = true});
  const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
  for (int i = 0; i < 2; ++i) {
    for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
    auto result = ddp.forward(x);
    first(result).sum().backward();
    EXPECT_EQ(grad_of(net->a), 1.5);
    EXPECT_FALSE(net->b.grad().defined()) << "nobody used it";
    auto both = ddp.forward(x);
    (first(both) + second(both)).sum().backward();
    EXPECT_EQ(grad_of(net->b), 1.5);
  }
}

TEST(DdpUnused, OutputsThatTheLossDoesNotUseAreHandledInEveryContainer) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    using Pair = std::pair<at::Tensor, at::Tensor>;
    using Tuple = std::tuple<at::Tensor, at::Tensor>;
    using Vector = std::vector<at::Tensor>;
    using Map = std::map<std::string, at::Tensor>;
    using Nested = std::tuple<at::Tensor, std::vector<std::optional<at::Tensor>>>;
    expect_found_in<Pair>(
        group, [](Pair& r) { return r.first; }, [](Pair& r) { return r.second; });
    expect_found_in<Tuple>(
        group, [](Tuple& r) { return std::get<0>(r); }, [](Tuple& r) { return std::get<1>(r); });
    expect_found_in<Vector>(
        group, [](Vector& r) { return r[0]; }, [](Vector& r) { return r[1]; });
    expect_found_in<Map>(
        group, [](Map& r) { return r["first"]; }, [](Map& r) { return r["second"]; });
    expect_found_in<Nested>(
        group, [](Nested& r) { return std::get<0>(r); }, [](Nested& r) { return *std::get<1>(r)[0]; });
    expect_found_in<TwoOutputs>(
        group, [](TwoOutputs& r) { return r.first; }, [](TwoOutputs& r) { return r.second; });
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
    EXPECT_FALSE(net->b.grad().defined());
    // What it was when the bucket last travelled is not what it gets now.
    ddp.zero_grad();
    ddp.forward(x, true).sum().backward();
    const auto before = grad_of(net->b);
    ddp.forward(x, false).sum().backward();
    EXPECT_EQ(grad_of(net->b), before);
  });
}

// The bucket holds nothing of this backward, but of the one before.
TEST(DdpUnused, SkippedBucketsAreThoseThatNoSyncHasNotUsedEither) {
  for (const bool as_view : {true, false}) {
    with_torch_threads(2, [as_view](const ProcessGroupPtr& group) {
      Branches net;
      DistributedDataParallel ddp(net, {.process_group = group,
                                        .bucket_cap_mb = 0.000001,
                                        .find_unused_parameters = true,
                                        .gradient_as_bucket_view = as_view,
                                        .skip_all_reduce_unused_params = true});
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad();
        {
          const auto local = ddp.no_sync();
          ddp.forward(x, true).sum().backward();
        }
        ddp.forward(x, false).sum().backward();
        EXPECT_EQ(grad_of(net->a), 3.0);
        EXPECT_EQ(grad_of(net->b), 1.5) << "from no_sync";
        ddp.forward(x, false).sum().backward();
        EXPECT_EQ(grad_of(net->b), 1.5) << "skipped";
      }
      ddp.forward(x, false);
      EXPECT_EQ(ddp.logging_data().integer("num_buckets_reduced"), 3 * (2 + 1));
    });
  }
}

// --- static graphs

/// Three branches: rank 0 uses `b`, nobody uses `c`.
struct ThirdBranch : BranchesImpl {
  ThirdBranch() { c = register_parameter("c", torch::ones({1}, torch::kDouble)); }
  at::Tensor c;
};

TEST(DdpStatic, RanksMayHaveUnusedParametersOfTheirOwn) {
  for (const bool as_view : {true, false}) {
    for (const bool skips : {true, false}) {
      with_torch_threads(2, [&](const ProcessGroupPtr& group) {
        const auto net = std::make_shared<ThirdBranch>();
        DistributedDataParallel ddp(net, {.process_group = group,
                                          .bucket_cap_mb = 0.000001,
                                          .gradient_as_bucket_view = as_view,
                                          .static_graph = true,
                                          .skip_all_reduce_unused_params = skips});
        const auto x = torch::full({1}, group->rank() + 3.0, torch::kDouble);
        for (int i = 0; i < 4; ++i) {
          for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
          ddp.forward(x, group->rank() == 0).sum().backward();
          EXPECT_EQ(grad_of(net->a), 3.5);
          EXPECT_EQ(grad_of(net->b), 1.5) << "the average of 3 and 0 on rank " << group->rank();
          EXPECT_FALSE(net->c.grad().defined()) << "nobody used it";
          ddp.forward(x, group->rank() == 0).sum().backward();
          EXPECT_EQ(grad_of(net->b), 3.0) << "added to the average";
        }
      });
    }
  }
}

TEST(DdpStatic, WhatNobodyUsedAtFirstIsAnErrorLater) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    const auto x = torch::ones({1}, torch::kDouble);
    for (int i = 0; i < 3; ++i) ddp.forward(x, false).sum().backward();
    const auto local = ddp.no_sync();
    ddp.forward(x, false).sum().backward();
    EXPECT_ERROR(Error, ddp.forward(x, true).sum().backward(), "1 (b) got a gradient in no_sync");
  });
  // Rank 0 has no input while the other one learns.
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    const auto x = torch::ones({1}, torch::kDouble);
    join({&ddp}, [&] {
      if (group->rank() == 1) ddp.forward(x, false).sum().backward();
    });
    if (group->rank() == 1) return;
    EXPECT_ERROR(Error, ddp.forward(x, true).sum().backward(), "1 (b) is used on this rank, which had no input");
    EXPECT_ERROR(Error, ddp.forward(x, false), "the last backward failed");
  });
}

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

TEST(DdpStatic, LossesThatAreNotForwardsResultAreReducedToo) {
  struct Member : torch::nn::Module {
    Member() { weight = register_parameter("weight", torch::ones({1}, torch::kDouble)); }
    void forward(const at::Tensor& x) { loss = (weight * x).sum(); }
    at::Tensor weight, loss;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Member>();
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    for (int i = 0; i < 4; ++i) {
      ddp.zero_grad();
      ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble));
      net->loss.backward();
      EXPECT_EQ(grad_of(net->weight), 1.5);
    }
  });
}

TEST(DdpStatic, ALossThatPassesForwardsResultByIsAnError) {
  struct Member : torch::nn::Module {
    Member() { weight = register_parameter("weight", torch::ones({1}, torch::kDouble)); }
    at::Tensor forward(const at::Tensor& x) {
      loss = (weight * x).sum();
      return loss + 1;
    }
    at::Tensor weight, loss;
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Member>();
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    ddp.forward(torch::ones({1}, torch::kDouble));
    net->loss.backward();
    EXPECT_ERROR(Error, ddp.forward(torch::ones({1}, torch::kDouble)), "was not reduced");
  });
}

TEST(DdpStatic, AFirstBackwardThatFailsIsLearntAnew) {
  struct Fails : torch::autograd::Function<Fails> {
    static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                   const torch::autograd::variable_list& /*gradients*/) {
      throw ValueError("on the way");
    }
  };
  struct Net : Mlp::ContainedType {
    at::Tensor forward(const at::Tensor& x, bool fails) {
      const auto first = torch::tanh(linears[0]->forward(x));
      return linears[1]->forward(fails ? Fails::apply(first) : first);
    }
    Net() : MlpImpl(8, 2) {}
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    const auto x = random_batch(1, {2, 4});
    EXPECT_ERROR(ValueError, ddp.forward(x, true).sum().backward(), "on the way");
    for (int i = 0; i < 4; ++i) EXPECT_NO_THROW(ddp.forward(x, false).sum().backward()) << i;
  });
}

TEST(DdpStatic, FewerUsesThanInTheFirstIterationAreToldByTheNextForward) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Branches(), {.process_group = group, .static_graph = true});
    const auto x = torch::ones({1}, torch::kDouble);
    for (int i = 0; i < 2; ++i) ddp.forward(x, true).sum().backward();
    ddp.forward(x, false).sum().backward();
    EXPECT_ERROR(Error, ddp.forward(x, true), "the graph has changed");
  });
}

TEST(DdpStatic, SettingItTwiceIsTold) {
  const LogCount twice("static_graph was set before");
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Branches(), {.process_group = group});
    ddp.set_static_graph();
    ddp.set_static_graph();
  });
  EXPECT_EQ(twice.value(), 1);
}

TEST(DdpStatic, TheSearchAddsNothingAndThatIsTold) {
  const LogCount redundant("adds nothing to static_graph");
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel by_option(Branches(),
                                      {.process_group = group, .find_unused_parameters = true, .static_graph = true});
    DistributedDataParallel by_call(Branches(), {.process_group = group, .find_unused_parameters = true});
    by_call.set_static_graph();
  });
  EXPECT_EQ(redundant.value(), 2);
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
  struct TwoTypes : torch::nn::Module {
    TwoTypes() {
      a = register_parameter("a", torch::ones({2}));
      b = register_parameter("b", torch::ones({2}, torch::kDouble));
    }
    at::Tensor forward(double x) { return (a * x).sum() + (b * x).sum(); }
    at::Tensor a, b;
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(std::make_shared<TwoTypes>(), {.process_group = group, .static_graph = true});
    std::vector<std::size_t> indices;
    std::size_t last = 0;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      indices.push_back(bucket.index());
      last += bucket.is_last() ? 1 : 0;
      return completed_future(bucket.buffer());
    });
    for (std::size_t i = 1; i <= 4; ++i) {
      indices.clear();
      ddp.forward(1).backward();
      EXPECT_THAT(indices, ElementsAre(0, 1));
      EXPECT_EQ(last, i);
    }
  });
}

TEST(Ddp, AParameterUsedOutsideForwardIsReadyTwice) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto y = Reenters::apply(ddp.forward(torch::ones({1}, torch::kDouble), true), net->a);
    EXPECT_ERROR(Error, y.sum().backward(), "0 (a) got its gradient twice");
    EXPECT_EQ(ddp.logging_data().integer("has_error"), 1);
    EXPECT_EQ(ddp.logging_data().integer("iteration"), 1);
    EXPECT_THAT(ddp.logging_data().text("error"), HasSubstr("got its gradient twice"));
  });
}

}  // namespace
}  // namespace cohort::test
