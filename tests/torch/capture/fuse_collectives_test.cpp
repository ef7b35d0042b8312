// SPDX-License-Identifier: BSD-3-Clause
//
// Small collectives become one.
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include "torch/capture/passes_support.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

constexpr PassOptions only_fusion{
    .remove_dead = false, .merge_common = false, .overlap = false, .fuse_collectives = true};

TEST(FuseCollectives, MakesOneOfFunctionalNeighbours) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group, state = at::ones({2})](const at::Tensor& x) -> Tensors {
        Tensors results;
        for (int i = 1; i <= 3; ++i) results.push_back(functional::all_reduce(x * i, "sum", group).view({-1}));
        for (int i = 1; i <= 2; ++i) results.push_back(functional::all_gather_tensor(x * i, 0, group));
        const auto scattered = functional::reduce_scatter_tensor(results.back(), "avg", 0, group);
        functional::wait_tensor(functional::all_reduce_(state, "max", group));
        return {results[0] + results[1], results[2] * 1, results[3] * results[4], scattered * 1, state};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_fusion, {4, 3}, group->rank());
    EXPECT_EQ(count_of(recorded, "cohort::all_reduce"), 3U);
    EXPECT_EQ(count_of(optimized, "cohort::all_reduce"), 0U) << to_string(optimized);
    EXPECT_EQ(count_of(optimized, "cohort::all_reduce_coalesced"), 1U);
    EXPECT_EQ(count_of(optimized, "cohort::all_gather_into_tensor_coalesced"), 1U);
    EXPECT_EQ(count_of(optimized, "cohort::reduce_scatter_tensor"), 1U);
    EXPECT_EQ(count_of(optimized, "cohort::all_reduce_"), 1U);
    EXPECT_EQ(count_of(optimized, "cohort::wait_tensor"), count_of(recorded, "cohort::wait_tensor"));
    EXPECT_NE(explained.find("fuse_collectives: 5 collectives became 2"), std::string::npos) << explained;
  });
}

TEST(FuseCollectives, MakesOneOfPlainNeighbours) {
  with_ranks([](const ProcessGroupPtr& group) {
    for (const bool is_async : {false, true}) {
      const MakeStep make = [&] {
        return [group, is_async](const at::Tensor& x) -> Tensors {
          Tensors sums;
          std::vector<Work> works;
          for (int i = 1; i <= 4; ++i) {
            sums.push_back(x * i);
            works.push_back(group->all_reduce(sums.back(), {.async_op = is_async}));
          }
          for (const auto& each : works) each.wait();
          return {sums[0] + sums[1], sums[2].sin(), sums[3]};
        };
      };
      const auto [recorded, optimized, explained] = compare_runs(make, only_fusion, {4, 3}, group->rank());
      EXPECT_EQ(count_of(recorded, "all_reduce"), 4U);
      EXPECT_EQ(count_of(optimized, "all_reduce"), 0U) << to_string(optimized);
      EXPECT_EQ(count_of(optimized, "all_reduce_coalesced"), 1U);
    }
  });
}

struct ApartCase {
  std::string name;
  std::function<Tensors(const ProcessGroupPtr& group, const ProcessGroupPtr& other, const at::Tensor& x)> step;
  std::size_t cap = 1024;
  friend void PrintTo(const ApartCase& it, std::ostream* out) { *out << it.name; }
};

class FuseCollectivesCases : public testing::TestWithParam<ApartCase> {};

TEST_P(FuseCollectivesCases, LeavesApartWhatDoesNotBelongTogether) {
  auto passes = only_fusion;
  passes.fuse_cap = GetParam().cap;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto other = group->split_group({0, 1});
    const MakeStep make = [&] {
      return [&group, &other](const at::Tensor& x) { return GetParam().step(group, other, x); };
    };
    const auto runs = compare_runs(make, passes, {4, 3}, group->rank());
    EXPECT_EQ(collectives_of(runs.optimized), collectives_of(runs.recorded));
  });
}

using functional::all_reduce;

/// Both are there before the first is used.
Tensors used(const Tensors& sums) {
  return {sums[0] * 1, sums[1] * 1};
}

INSTANTIATE_TEST_SUITE_P(
    Cases, FuseCollectivesCases,
    testing::Values(ApartCase{"Groups",
                              [](const auto& group, const auto& other, const at::Tensor& x) -> Tensors {
                                return used({all_reduce(x, "sum", group), all_reduce(x, "sum", other)});
                              }},
                    ApartCase{"Reductions",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                return used({all_reduce(x, "sum", group), all_reduce(x, "max", group)});
                              }},
                    ApartCase{"Dtypes",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                return used({all_reduce(x, "sum", group), all_reduce(x.to(at::kDouble), "sum", group)});
                              }},
                    ApartCase{"TooManyBytes",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                return used({all_reduce(x, "sum", group), all_reduce(x * 2, "sum", group)});
                              },
                              95},
                    ApartCase{"OneNeedsTheOther",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                return {all_reduce(all_reduce(x, "sum", group).tanh(), "sum", group) * 1};
                              }},
                    ApartCase{"OneWritesWhatTheOtherReads",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                auto sum = x + 1;
                                group->all_reduce(sum);
                                group->all_reduce(sum);
                                return {sum};
                              }},
                    ApartCase{"InputIsWrittenInBetween",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                const auto y = x + 1;
                                const auto first = all_reduce(y, "sum", group);
                                y.mul_(2);
                                return used({first, all_reduce(y, "sum", group)});
                              }},
                    ApartCase{"AnotherCollectiveInBetween",
                              [](const auto& group, const auto& other, const at::Tensor& x) -> Tensors {
                                const auto first = all_reduce(x, "sum", group);
                                other->barrier();
                                return used({first, all_reduce(x * 2, "sum", group)});
                              }},
                    ApartCase{"TheHostInBetween",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                const auto first = all_reduce(x, "sum", group);
                                on_host([] {});
                                return used({first, all_reduce(x * 2, "sum", group)});
                              }},
                    ApartCase{"SendsAndReceives",
                              [](const auto& group, const auto& /*other*/, const at::Tensor& x) -> Tensors {
                                auto received = at::zeros_like(x);
                                auto again = at::zeros_like(x);
                                if (group->rank() == 0) {
                                  group->send(x, 1);
                                  group->send(x, 1);
                                } else {
                                  group->recv(received, 0);
                                  group->recv(again, 0);
                                }
                                return {received, again};
                              }}),
    [](const auto& it) { return it.param.name; });

}  // namespace
}  // namespace cohort::test
