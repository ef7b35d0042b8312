// SPDX-License-Identifier: BSD-3-Clause
//
// Removal of dead and of common operators.
#include <ATen/Parallel.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <set>
#include <string>

#include "torch/capture/operator_traits.h"
#include "torch/capture/passes_support.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

constexpr PassOptions only_dead{.remove_dead = true, .merge_common = false, .overlap = false};
constexpr PassOptions only_common{.remove_dead = false, .merge_common = true, .overlap = false};

// --- dead operators -------------------------------------------------------------------------------------------------

TEST(RemoveDead, RemovesWhatNothingUses) {
  const MakeStep make = [] {
    return [](const at::Tensor& x) -> Tensors {
      auto unused = x.sin().cos();
      unused.view({-1}).mul_(2);
      return {x.exp()};
    };
  };
  const auto [recorded, optimized, explained] = compare_runs(make, only_dead);
  EXPECT_EQ(recorded.nodes.size(), 5U) << to_string(recorded);
  ASSERT_EQ(optimized.nodes.size(), 1U) << to_string(optimized);
  EXPECT_EQ(optimized.nodes[0].name, "aten::exp");
  EXPECT_NE(explained.find("remove_dead: 4 operators"), std::string::npos) << explained;
}

TEST(RemoveDead, KeepsWhatIsSeenOutside) {
  const MakeStep make = [] {
    return [state = at::ones({4, 3}), list = Tensors(2, at::zeros({2}))](const at::Tensor& x) -> Tensors {
      state.select(0, 2).add_(x.select(0, 0));  // through a view
      const auto made = at::zeros_like(x);
      made.narrow(0, 0, 1).fill_(3);  // seen through its base
      at::_foreach_add_(list, 1);
      return {made, state, list[0]};
    };
  };
  const auto [recorded, optimized, explained] = compare_runs(make, only_dead);
  EXPECT_EQ(optimized.nodes.size(), recorded.nodes.size());
}

TEST(RemoveDead, KeepsRunningStatisticsRandomNumbersAndTheHost) {
  int calls = 0;
  const MakeStep make = [&calls] {
    at::manual_seed(3);
    return [&calls, mean = at::zeros({3}), variance = at::ones({3})](const at::Tensor& x) -> Tensors {
      at::native_batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5);  // writes both, and its schema does not say so
      at::rand({2});                                                      // the next draw depends on it
      on_host([&calls] { ++calls; });
      return {mean, variance, at::rand({2})};
    };
  };
  const auto [recorded, optimized, explained] = compare_runs(make, only_dead);
  EXPECT_EQ(count_of(optimized, "aten::native_batch_norm"), 1U);
  EXPECT_EQ(count_of(optimized, "host"), 1U);
  EXPECT_EQ(count_of(optimized, "aten::uniform_"), count_of(recorded, "aten::uniform_"));
}

TEST(RemoveDead, KeepsCollectivesAndTheirWaits) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        functional::all_reduce(x, "sum", group);
        auto temporary = x + 1;
        group->all_reduce(temporary);
        return {x * 2};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_dead, {4, 3}, group->rank());
    EXPECT_EQ(optimized.nodes.size(), recorded.nodes.size());
  });
}

TEST(OperatorTraits, KnowEveryOperatorThatDrawsNumbers) {
  const std::set<std::string> drawing{
      "bernoulli",    "bernoulli_", "binomial",   "cauchy_",  "exponential_",   "geometric_",      "log_normal_",
      "multinomial",  "normal",     "normal_",    "poisson",  "rand",           "rand_like",       "randint",
      "randint_like", "randn",      "randn_like", "random_",  "randperm",       "rrelu",           "rrelu_with_noise",
      "uniform",      "uniform_",   "dropout",    "dropout_", "native_dropout", "_standard_gamma", "_sample_dirichlet",
  };
  std::size_t found = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string prefix = "aten::";
    if (!name.name.starts_with(prefix) || !drawing.contains(name.name.substr(prefix.size()))) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    EXPECT_TRUE(recording::traits_of(*op).is_random) << name.name << "." << name.overload_name;
    ++found;
  }
  EXPECT_GT(found, drawing.size());
}

// --- common operators -----------------------------------------------------------------------------------------------

TEST(MergeCommon, ComputesOnceWhatIsTheSame) {
  const MakeStep make = [] {
    return [](const at::Tensor& x) -> Tensors {
      const auto a = (x * 2).sin();
      const auto b = (x * 2).sin();
      const auto [values, indices] = x.max(0);
      const auto [values_again, indices_again] = x.max(0);
      return {a.t() + b.t(), values * values_again, indices + indices_again};
    };
  };
  const auto [recorded, optimized, explained] = compare_runs(make, only_common);
  EXPECT_EQ(count_of(recorded, "aten::sin"), 2U);
  EXPECT_EQ(count_of(optimized, "aten::mul"), 2U) << to_string(optimized);
  EXPECT_EQ(count_of(optimized, "aten::sin"), 1U);
  EXPECT_EQ(count_of(optimized, "aten::t"), 1U);
  EXPECT_EQ(count_of(optimized, "aten::max"), 1U);
  EXPECT_NE(explained.find("merge_common: 4 operators"), std::string::npos) << explained;
}

struct DifferentCase {
  std::string name;
  MakeStep make;
  std::string op = "aten::sin";  ///< appears twice, and must do so afterwards
  friend void PrintTo(const DifferentCase& it, std::ostream* out) { *out << it.name; }
};

class MergeCommonCases : public testing::TestWithParam<DifferentCase> {};

TEST_P(MergeCommonCases, LeavesWhatIsDifferent) {
  at::set_num_threads(1);
  const auto [recorded, optimized, explained] = compare_runs(GetParam().make, only_common);
  EXPECT_EQ(count_of(recorded, GetParam().op), 2U) << to_string(recorded);
  EXPECT_EQ(count_of(optimized, GetParam().op), 2U) << to_string(optimized);
}

template <class Body>
MakeStep always(const Body& body) {
  return [body] {
    at::manual_seed(5);
    return Step(body);
  };
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MergeCommonCases,
    testing::Values(DifferentCase{"WrittenInBetween", always([](const at::Tensor& x) -> Tensors {
                                    const auto y = x + 1;
                                    const auto a = y.sin();
                                    y.select(0, 1).mul_(2);
                                    return {a, y.sin() + a};
                                  })},
                    DifferentCase{"FirstResultIsWritten", always([](const at::Tensor& x) -> Tensors {
                                    const auto a = x.sin();
                                    a.add_(1);
                                    return {x.sin() + a};
                                  })},
                    DifferentCase{"SecondResultIsWrittenThroughAView", always([](const at::Tensor& x) -> Tensors {
                                    const auto a = x.sin();
                                    const auto b = x.sin();
                                    b.view({-1}).narrow(0, 0, 2).zero_();
                                    return {a + b};
                                  })},
                    DifferentCase{"BothAreResults", always([](const at::Tensor& x) -> Tensors {
                                    return {x.sin(), x.sin()};
                                  })},
                    DifferentCase{"OneConstantDiffersByItsSign", always([](const at::Tensor& x) -> Tensors {
                                    const auto a = at::hardtanh(x, -0.0, 1);
                                    const auto b = at::hardtanh(x, 0.0, 1);
                                    return {a.reciprocal(), b.reciprocal()};
                                  }),
                                  "aten::hardtanh"},
                    DifferentCase{"FirstIsGoneAlready", always([](const at::Tensor& x) -> Tensors {
                                    const auto a =
                                        x.sin().sum();  // recomputed below, as a checkpointed part of a model is
                                    return {x.cos() * a * x.sin()};
                                  })},
                    DifferentCase{"RandomNumbers", always([](const at::Tensor& x) -> Tensors {
                                    return {at::bernoulli(x.sigmoid()) + at::bernoulli(x.sigmoid())};
                                  }),
                                  "aten::bernoulli"},
                    DifferentCase{"HostNumbers",
                                  [] {
                                    return [count = std::make_shared<int>(0)](const at::Tensor& x) -> Tensors {
                                      const auto sum = [&] {
                                        const HostArgument alpha("alpha", [count] { return ++*count; });
                                        return at::add(x, x, alpha.value());
                                      };
                                      const auto first = sum();
                                      return {first * sum()};
                                    };
                                  },
                                  "aten::add"}),
    [](const auto& it) { return it.param.name; });

TEST(MergeCommon, LeavesCollectives) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        return {functional::all_reduce(x, "sum", group) + functional::all_reduce(x, "sum", group)};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_common, {4, 3}, group->rank());
    EXPECT_EQ(optimized.nodes.size(), recorded.nodes.size());
  });
}

}  // namespace
}  // namespace cohort::test
