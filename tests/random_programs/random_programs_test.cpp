// SPDX-License-Identifier: BSD-3-Clause
//
// The generator itself: programs are the same for the same seed, every operation occurs, a wrong result is found, and a
// failure is cut to the steps that matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "random_programs/generate.h"
#include "random_programs/run.h"
#include "random_programs/shrink.h"

namespace cohort::random_programs {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

auto in_a_minute() {
  return std::chrono::steady_clock::now() + 60s;
}

TEST(RandomProgram, IsTheSameForTheSameSeedOnEveryBackend) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto a = generate(seed, "shm");
    EXPECT_EQ(describe(a), describe(generate(seed, "shm")));
    EXPECT_EQ(describe(a), describe(generate(seed, "mpi")));
    EXPECT_NE(describe(a), describe(generate(seed + 1, "shm")));
  }
}

TEST(RandomProgram, EveryOperationTypeAndReductionOccurs) {
  std::set<Kind> seen;
  std::set<std::pair<DType, ReduceOp::Kind>> reduced;
  std::set<int> sizes;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const auto program = generate(seed, "shm");
    sizes.insert(program.size);
    for (const auto& step : program.steps) {
      seen.insert(step.kind);
      if (step.kind <= Kind::reduce) reduced.emplace(step.dtype, step.reduction);
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kinds));
  EXPECT_EQ(sizes, (std::set<int>{1, 2, 3, 4, 5, 8}));
  // 4 floating-point types with 6 reductions, 5 integer types and bool with 7, 2 complex types with 3.
  EXPECT_EQ(reduced.size(), 4U * 6 + 6 * 7 + 2 * 3);
}

TEST(RandomProgram, WithoutASplitHasNoStepsOfItsGroup) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto program = generate(seed, "shm");
    auto cut = whole(program);
    std::erase_if(cut.steps, [&](int number) {
      return std::any_of(program.steps.begin(), program.steps.end(),
                         [&](const Step& step) { return step.number == number && step.kind == Kind::split; });
    });
    for (const auto& step : with_cut(program, cut).steps) EXPECT_EQ(step.group, world);
  }
}

/// A stand-in for a bug that needs a split, an uneven all_to_all in its group, and three ranks in that group.
bool fails(const Program& program) {
  const auto members = members_of(program);
  return std::any_of(program.steps.begin(), program.steps.end(), [&](const Step& step) {
    return step.kind == Kind::all_to_all_uneven && step.group != world && members.at(step.group).size() >= 3 &&
           step.count >= 2;
  });
}

TEST(Shrinking, LeavesTheStepsThatMatter) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto program = generate(seed, "shm");
    if (!fails(program)) continue;
    ++found;
    const auto cut = shrink(
        program, [&](const Cut& each) { return fails(with_cut(program, each)); }, in_a_minute());
    const auto small = with_cut(program, cut);
    EXPECT_TRUE(fails(small)) << seed;
    EXPECT_LE(small.steps.size(), 4U) << describe(small);  // splits of splits
    EXPECT_LE(small.size, 5) << describe(small);
    EXPECT_LE(small.steps.back().count, 5U) << describe(small);
  }
  EXPECT_GT(found, 5);
}

class RandomProgramsOn : public ::testing::TestWithParam<std::string> {};

TEST_P(RandomProgramsOn, FindsAWrongBitAndCutsTheProgramToItsStep) {
  // The library is told to be wrong in one operation, on the last rank of a group.
  const Where where{.backend = GetParam(), .tampered = Kind::reduce_scatter_list};
  int found = 0;
  for (std::uint64_t seed = 1; found == 0 && seed < 50; ++seed) {
    const auto program = generate(seed, where.backend);
    const auto reports = run(program, where);
    if (reports.empty()) continue;
    ++found;
    EXPECT_EQ(reports.front().failure.kind, "wrong data") << to_string(reports.front());
    EXPECT_THAT(to_string(reports.front()), HasSubstr("reduce_scatter of a list"));
    const auto cut = shrink(
        program, [&](const Cut& each) { return !run(with_cut(program, each), where).empty(); }, in_a_minute());
    const auto small = with_cut(program, cut);
    EXPECT_LE(small.steps.size(), 3U) << describe(small);
    EXPECT_THAT(describe(small), HasSubstr("reduce_scatter of a list"));
  }
  EXPECT_EQ(found, 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, RandomProgramsOn, ::testing::Values("thread", "shm"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace cohort::random_programs
