// SPDX-License-Identifier: BSD-3-Clause
//
// The data that operations are checked with, and what they must make of it, computed one element after the other.
//
// Values are small integers, so that every order of summation gives the same bits in every type. They repeat after a
// prime number of elements: a block that ends up in the wrong place, or a chunk that was left out, does not match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "measure/command.h"

namespace cohort::measure {

/// One period of a sequence of elements.
class Pattern {
 public:
  /// What rank `source` has for rank `destination` (0 where there are no blocks).
  static Pattern of_input(const Command& command, int ranks, int source, int destination);
  /// The reduction over all ranks of their inputs for `destination`.
  static Pattern of_reduction(const Command& command, int ranks, int destination);

  void fill(void* to, std::size_t count) const;
  std::uint64_t count_wrong(const void* at, std::size_t count) const;

 private:
  Pattern(DType dtype, const std::vector<double>& values);

  std::size_t element_;
  std::vector<std::byte> period_;
};

/// The inputs of a rank before the operation; outputs get other values.
void fill_inputs(const Command& command, std::size_t count, int ranks, int rank, void* input, void* output);
/// Elements of this rank's output that are not what they must be.
std::uint64_t count_wrong_outputs(const Command& command, std::size_t count, int ranks, int rank, const void* output);

}  // namespace cohort::measure
