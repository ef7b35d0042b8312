// SPDX-License-Identifier: BSD-3-Clause
#include "reduce/instruction_set.h"

#include "reduce/targets.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include "reduce/instruction_sets.h"

namespace cohort::test {
namespace {

using reduce::InstructionSet;

TEST(InstructionSets, AreThoseThatHighwayFinds) {
#if defined(__x86_64__)
  const auto found = hwy::SupportedTargets();
  const auto best = reduce::best_instruction_set();
  EXPECT_EQ(best >= InstructionSet::sse4, (found & HWY_SSE4) != 0);
  EXPECT_EQ(best >= InstructionSet::avx2, (found & HWY_AVX2) != 0);
  EXPECT_EQ(best >= InstructionSet::avx512, (found & HWY_AVX3) != 0);
#else
  EXPECT_EQ(reduce::best_instruction_set(), InstructionSet::baseline);
#endif
}

TEST(InstructionSets, ChooseTheBestVersionThatThereIs) {
  const reduce::Versions<const char*> all{.avx512 = "avx512", .avx2 = "avx2", .sse4 = "sse4", .baseline = "baseline"};
  const reduce::Versions<const char*> some{.avx512 = nullptr, .avx2 = "avx2", .sse4 = nullptr, .baseline = "baseline"};
  on_every_instruction_set([&] {
    switch (reduce::instruction_set()) {
      case InstructionSet::avx512:
        EXPECT_STREQ(all.chosen(), "avx512");
        EXPECT_STREQ(some.chosen(), "avx2");
        break;
      case InstructionSet::avx2:
        EXPECT_STREQ(all.chosen(), "avx2");
        EXPECT_STREQ(some.chosen(), "avx2");
        break;
      case InstructionSet::sse4:
        EXPECT_STREQ(all.chosen(), "sse4");
        EXPECT_STREQ(some.chosen(), "baseline");
        break;
      case InstructionSet::baseline:
        EXPECT_STREQ(all.chosen(), "baseline");
        EXPECT_STREQ(some.chosen(), "baseline");
        break;
    }
  });
}

}  // namespace
}  // namespace cohort::test
