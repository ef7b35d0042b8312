// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a test once for each instruction set that was compiled in and that this CPU supports.
#pragma once

#include "reduce/instruction_set.h"

#include <gtest/gtest.h>

namespace cohort::test {

template <class Body>
void on_every_instruction_set(const Body& body) {
  const struct Restore {
    ~Restore() { reduce::set_instruction_set_for_test(reduce::best_instruction_set()); }
  } restore;
  for (auto set = reduce::InstructionSet::baseline; set <= reduce::best_instruction_set();
       set = static_cast<reduce::InstructionSet>(static_cast<int>(set) + 1)) {
    SCOPED_TRACE(testing::Message() << "instruction set " << static_cast<int>(set));
    reduce::set_instruction_set_for_test(set);
    body();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace cohort::test
