// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a test once for each instruction set that was compiled in and that this CPU supports.
#pragma once

#include "reduce/targets.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <vector>

namespace cohort::test {

inline std::vector<std::int64_t> instruction_sets() {
  auto sets = hwy::SupportedAndGeneratedTargets();
  // The fallback instruction set has another name if Highway was built by another compiler.
  if ((hwy::SupportedTargets() & HWY_STATIC_TARGET) == 0) sets.push_back(HWY_STATIC_TARGET);
  return sets;
}

template <class Body>
void on_every_instruction_set(const Body& body) {
  struct Restore {
    ~Restore() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
  } restore;
  for (const auto set : instruction_sets()) {
    SCOPED_TRACE(hwy::TargetName(set));
    hwy::GetChosenTarget().Update(set);
    body();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace cohort::test
