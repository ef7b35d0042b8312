// SPDX-License-Identifier: BSD-3-Clause
//
// Which instructions of a step can be launched as one CUDA graph. A graph repeats the same kernels with the same
// numbers on the same memory, so what changes from replay to replay, and what the host does, stays out of it:
//
//   std::vector<bool> is_direct(program.instructions.size());
//   for (...) is_direct[i] = !obstacle(program, program.instructions[i]).empty();
//   const auto parts = partition(program, is_direct);
//
// A replay then launches the graph and calls the rest, the tail, after it. An instruction that could be in the graph is
// in the tail if it must come after one that is there. What the host does (on_host) is in neither: it comes before
// both.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

struct GraphPartition {
  std::vector<std::size_t> graph;  ///< instructions, in the order of the program
  std::vector<std::size_t> tail;   ///< likewise
};

inline bool is_on_gpu(const Value& value) {
  return value.shown.device.starts_with("cuda");
}

/// Why the instruction cannot be in a CUDA graph, in words; empty if it can.
std::string obstacle(const Program& program, const Instruction& instruction);

/// The order of random numbers and of the collectives on a group is kept, and a collective is in the same part as the
/// wait for it. A square root that the tail alone uses, as in Adam's update, is in the tail: its result need not be
/// kept then.
GraphPartition partition(const Program& program, std::vector<bool> is_direct);

}  // namespace cohort::recording
