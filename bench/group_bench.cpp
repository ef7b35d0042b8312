// SPDX-License-Identifier: BSD-3-Clause
//
// Measures process groups against their bars (docs/performance.md); `cohort bench` measures single collectives.
#include "benchmarks.h"

int main(int argc, char** argv) {
  using namespace cohort::benchmarks;
  Program program(
      "Measures process groups: making one against PyTorch's gloo, a computation beside an asynchronous all_reduce, a "
      "large all_reduce against what memory bandwidth allows, and the parts of a small one.");
  add_new_group(program);
  add_overlap(program);
  add_bandwidth(program);
  add_call_cost(program);
  return program.run(argc, argv);
}
