// SPDX-License-Identifier: BSD-3-Clause
//
// Random programs of operators on distributed tensors compute what dense tensors compute, forward and backward. A
// program that fails is made as small as possible and printed as C++, for the list of those that have failed before.
//
//   COHORT_TEST_SEED=5000 COHORT_TEST_PROGRAMS=1000 torch_dtensor_programs_test --gtest_filter=RandomOperators.*
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "torch/dtensor/cases.h"
#include "torch/dtensor/programs/program.h"

namespace cohort::test::programs {

namespace {

using namespace std::chrono_literals;

std::uint32_t number_from(const char* variable, std::uint32_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

// Sanitizers look at the code, for which a few will do.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t programs_for_every_change = 60;
const std::vector<Sizes> meshes_for_all_pairs{{2}};
#else
constexpr std::uint32_t programs_for_every_change = 400;
const std::vector<Sizes> meshes_for_all_pairs{{2}, {3}, {2, 2}};
#endif

bool fails(const Program& program) {
  return !failure_of(program).empty();
}

/// Runs programs together that have the same mesh.
void expect_as_dense(const std::vector<Program>& programs, const std::function<std::string(std::size_t)>& name) {
  std::map<Sizes, std::vector<std::size_t>> by_shape;
  for (std::size_t i = 0; i < programs.size(); ++i) by_shape[programs[i].shape].push_back(i);
  int reported = 0;
  for (const auto& [shape, members] : by_shape) {
    std::vector<Program> together;
    for (const auto each : members) together.push_back(programs[each]);
    const auto failures = failures_of(together);
    for (std::size_t i = 0; i < failures.size(); ++i) {
      if (failures[i].empty() || ++reported > 3) continue;
      const auto small = shrink(together[i], fails, 20s);
      ADD_FAILURE() << name(members[i]) << ": " << failures[i] << "\n\nmade smaller:\n"
                    << small << "\n"
                    << failure_of(small);
    }
  }
  if (reported > 3) ADD_FAILURE() << reported << " programs failed";
}

TEST(RandomOperators, ComputeWhatDenseTensorsCompute) {
  const auto first = number_from("COHORT_TEST_SEED", 1);
  const auto count = number_from("COHORT_TEST_PROGRAMS", programs_for_every_change);
  std::vector<Program> programs;
  for (std::uint32_t i = 0; i < count; ++i) programs.push_back(generate(first + i));
  const auto refused = refused_backwards();
  expect_as_dense(programs, [&](std::size_t i) { return "seed " + std::to_string(first + i); });
  RecordProperty("refused", static_cast<int>(refused_backwards() - refused));
  EXPECT_LE(refused_backwards() - refused, count / 20 + 1);
}

TEST(RandomOperators, AreTheSameForTheSameSeedAndAllOccur) {
  std::map<std::string, int> seen;
  for (std::uint32_t seed = 0; seed < 800; ++seed) {
    const auto program = generate(seed);
    EXPECT_TRUE(is_fit(program));
    if (seed < 20) {
      EXPECT_EQ(to_string(program), to_string(generate(seed)));
    }
    for (const auto& each : program.values) ++seen[each.op];
  }
  for (const auto& each : operators()) EXPECT_EQ(seen[each.name] > 0, !each.is_wrong) << each.name;
}

/// Every pair of placements, with gradients: what follows has an uneven size and a rank that holds nothing.
TEST(AllPairsOfPlacements, RedistributeForwardAndBackward) {
  std::vector<Program> programs;
  for (const auto& shape : meshes_for_all_pairs) {
    const Placements sources{Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial(), Partial("max")};
    const Placements targets{Replicate(), Shard(0), Shard(1), StridedShard(0, 2)};
    for (const auto& from : all_lists(sources, shape.size())) {
      for (const auto& to : all_lists(targets, shape.size())) {
        for (const auto& sizes : {Sizes{4, 4}, Sizes{5, 2}}) {
          programs.push_back({.shape = shape,
                              .values = {{.numbers = sizes, .placements = from},
                                         {.op = "redistribute", .arguments = {0}, .placements = to}}});
        }
      }
    }
  }
  expect_as_dense(programs, [&](std::size_t i) { return to_string(programs[i]); });
}

struct Named {
  std::string name;
  Program program;
  friend void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }
};

Value input(Sizes sizes, Placements placements, std::int64_t below = 0) {
  return {.numbers = std::move(sizes), .placements = std::move(placements), .below = below};
}

/// What random programs have found, and what was found beside them.
std::vector<Named> found_before() {
  const Placements max_of_sums{Partial("max"), Partial()};
  return {
      {"LinearOfAVector",
       {.shape = {2},
        .values = {input({3}, {Shard(0)}),
                   input({2, 3}, {Shard(1)}),
                   input({2}, {Replicate()}),
                   {.op = "linear", .arguments = {0, 1, 2}}}}},
      {"LinearOfAVectorOfMaxima",
       {.shape = {2},
        .values = {input({3}, {Partial("max")}),
                   input({2, 3}, {Replicate()}),
                   input({2}, {Replicate()}),
                   {.op = "linear", .arguments = {0, 1, 2}}}}},
      {"NormOfOrderZero",
       {.shape = {2},
        .values = {input({3}, {Shard(0)}),
                   {.op = "norm_without_gradient", .arguments = {0}, .numbers = {0, 0, 0, 0}}}}},
      {"NormOfNegativeOrderWhereARankHasNothing",
       {.shape = {3},
        .values = {input({2}, {Shard(0)}),
                   {.op = "norm_without_gradient", .arguments = {0}, .numbers = {0, 0, 1, 0}}}}},
      {"NormOfTheLeastElement",
       {.shape = {2},
        .values = {input({4}, {Shard(0)}),
                   {.op = "norm_without_gradient", .arguments = {0}, .numbers = {0, 0, 3, 0}}}}},
      {"IntegersOfASum",
       {.shape = {3}, .values = {input({4}, {Partial("avg")}), {.op = "through_integers", .arguments = {0}}}}},
      {"MinusAMaximumOfSums", {.shape = {2, 2}, .values = {input({3}, max_of_sums), {.op = "neg", .arguments = {0}}}}},
      {"ProductWithAMaximumOfSums",
       {.shape = {2, 2},
        .values = {input({2, 3}, max_of_sums),
                   input({3, 2}, {Replicate(), Shard(0)}),
                   {.op = "mm", .arguments = {0, 1}}}}},
      {"MaximumOfASumOfMaxima",
       {.shape = {2, 2},
        .values = {input({2, 3}, {Partial(), Partial("max")}),
                   {.op = "amax", .arguments = {0}, .numbers = {0, 0, 0, 0}}}}},
      {"MaximumOfAStridedShardThatLeavesARankEmpty",
       {.shape = {3},
        .values = {input({6}, {StridedShard(0, 3)}), {.op = "amax", .arguments = {0}, .numbers = {0, 0, 0, 0}}}}},
      {"StridedClasses",
       {.shape = {2},
        .values = {input({3, 8}, {StridedShard(1, 2)}),
                   input({3}, {Replicate()}, 8),
                   {.op = "cross_entropy", .arguments = {0, 1}, .numbers = {1, 0, 0, 0}}}}},
      {"GradientOfPartsThatAreNotUsed",
       {.shape = {2},
        .values = {input({3, 4}, {Shard(1)}),
                   {.op = "unbind", .arguments = {0}, .numbers = {0, 0, 0, 0}},
                   {.op = "split", .arguments = {0}, .numbers = {0, 0, 0, 0}}}}},
      {"GradientOfASummandIsWhole",
       {.shape = {2},
        .values = {input({1, 1}, {Partial()}),
                   {.op = "through_local", .arguments = {0}},
                   input({1, 1}, {Shard(0)}, 1),
                   {.op = "embedding", .arguments = {1, 2}, .numbers = {2, 0, 0, 0}}}}},
      {"ReductionOfATensorWithoutDimensions",
       {.shape = {2},
        .values = {input({}, {Partial()}), {.op = "sum_dim", .arguments = {0}, .numbers = {0, 1, 0, 0}}}}},
      {"ViewOfAContiguousCopy",
       {.shape = {2}, .values = {input({3, 4}, {Shard(0)}), {.op = "view_of_contiguous", .arguments = {0}}}}},
      {"ViewOfTwiceAnExpandedTensor",
       {.shape = {2},
        .values = {input({3, 4}, {Replicate()}),
                   {.op = "view_of_expanded", .arguments = {0}, .numbers = {2, 0, 0, 0}}}}},
      {"GradientOfGather",
       {.shape = {2},
        .values = {input({3, 4}, {Shard(0)}), input({3, 2}, {Shard(0)}, 4), {.op = "gather", .arguments = {0, 1}}}}},
      {"GradientOfIndexSelect",
       {.shape = {3},
        .values = {input({3, 4}, {Shard(1)}), input({5}, {Shard(0)}, 3), {.op = "index_select", .arguments = {0, 1}}}}},
  };
}

class FoundBefore : public testing::TestWithParam<Named> {};

TEST_P(FoundBefore, ComputesWhatDenseTensorsCompute) {
  ASSERT_TRUE(is_fit(GetParam().program));
  EXPECT_EQ(failure_of(GetParam().program), "");
}

INSTANTIATE_TEST_SUITE_P(Programs, FoundBefore, testing::ValuesIn(found_before()),
                         [](const auto& each) { return each.param.name; });

/// A stand-in for a bug that needs a softmax on three ranks, of something that a sharded input leads to.
bool has_the_bug(const Program& program) {
  const auto is_sharded = [](const Value& each) { return !each.placements.empty() && each.placements[0].is_shard(); };
  const auto is_softmax = [](const Value& each) { return each.op == "softmax"; };
  const auto& values = program.values;
  return program.shape[0] >= 3 && std::any_of(values.begin(), values.end(), is_softmax) &&
         std::any_of(values.begin(), values.end(), is_sharded);
}

TEST(Shrinking, LeavesWhatMatters) {
  int found = 0;
  for (std::uint32_t seed = 0; found < 5 && seed < 2000; ++seed) {
    const auto program = generate(seed, 12);
    if (program.values.size() < 8 || !has_the_bug(program)) continue;
    ++found;
    const auto small = shrink(program, has_the_bug, 60s);
    EXPECT_TRUE(has_the_bug(small));
    EXPECT_LE(small.values.size(), 4U) << small;
    EXPECT_EQ(small.shape, Sizes{3}) << small;
    for (const auto& each : small.values) {
      for (const auto number : each.numbers) EXPECT_EQ(number, 0) << small;
    }
  }
  EXPECT_EQ(found, 5);
}

TEST(Shrinking, OfAWrongOperatorLeavesThatOperator) {
  const Program program{.shape = {2, 2},
                        .values = {input({3, 4}, {Shard(0), Partial()}),
                                   {.op = "relu", .arguments = {0}},
                                   {.op = "wrong_if_sharded", .arguments = {1}},
                                   {.op = "sum_dim", .arguments = {2}, .numbers = {0, 0, 0, 0}},
                                   {.op = "neg", .arguments = {3}}}};
  EXPECT_THAT(failure_of(program), testing::HasSubstr("value 2 (wrong_if_sharded) as [S(0), S(0)] is wrong on rank"));
  const auto small = shrink(program, fails, 60s);
  EXPECT_EQ(small.values.size(), 2U) << small;
  EXPECT_EQ(small.values.back().op, "wrong_if_sharded") << small;
  EXPECT_EQ(small.shape, Sizes{1}) << small;
  EXPECT_EQ(small.values.front().numbers, (Numbers{1, 1})) << small;
}

/// No rank waits for the one that has given up, and the programs that follow run.
TEST(RandomOperators, GoOnAfterAnErrorOnOneRank) {
  const auto of = [](const char* op) -> Program {
    return {.shape = {3},
            .values = {input({4}, {Shard(0)}), {.op = op, .arguments = {0}}, {.op = "sum", .arguments = {1}}}};
  };
  const auto start = std::chrono::steady_clock::now();
  const auto failures = failures_of({of("neg"), of("throws_on_rank_1"), of("relu")});
  EXPECT_EQ(failures[0], "");
  EXPECT_EQ(failures[1], "rank 1: thrown by the operator");
  EXPECT_EQ(failures[2], "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
}

TEST(Shrinking, PrintsCppThatMakesTheSameProgram) {
  const Program program{.shape = {2, 2},
                        .values = {{.numbers = {3, 4}, .placements = {StridedShard(0, 2), Partial("max")}},
                                   {.numbers = {3}, .placements = {Shard(0), Replicate()}, .below = 4},
                                   {.op = "cross_entropy", .arguments = {0, 1}, .numbers = {1, 0, 0, 0}}}};
  EXPECT_EQ(to_string(program),
            R"({.shape = {2, 2},
 .values = {{.op = "input", .numbers = {3, 4}, .placements = {StridedShard(0, 2), Partial("max")}},
            {.op = "input", .numbers = {3}, .placements = {Shard(0), Replicate()}, .below = 4},
            {.op = "cross_entropy", .arguments = {0, 1}, .numbers = {1, 0, 0, 0}}}})");
}

}  // namespace

}  // namespace cohort::test::programs
