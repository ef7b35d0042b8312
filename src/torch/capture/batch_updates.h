// SPDX-License-Identifier: BSD-3-Clause
//
// An optimizer updates each parameter with a few small kernels, and on a GPU most of the time of a small kernel is its
// launch. Updates of many tensors by the same operator with the same numbers become one operator on lists, which libtorch
// has as _foreach_add_ and the like. It computes the same bits.
//
//   p0.mul_(0.9); p0.add_(g0); p1.mul_(0.9); p1.add_(g1);      becomes
//   _foreach_mul_([p0, p1], 0.9); _foreach_add_([p0, p1], [g0, g1]);
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// An instruction and, for each of its host_numbers, which number that is: equal ones are the same number at all times.
struct NumberedInstruction {
  const Instruction* instruction;
  std::vector<std::size_t> numbers{};
};

/// The instructions in an order that gives the same values, with operators on lists where several became one.
std::vector<Instruction> batch_updates(const Program& program, std::span<const NumberedInstruction> instructions);

}  // namespace cohort::recording
