// SPDX-License-Identifier: BSD-3-Clause
//
// What a rank is calling, in one 64-bit word that fits a post: comparing two words compares everything.
#pragma once

#include <cohort/dtype.h>
#include <cohort/op_type.h>
#include <cohort/reduce_op.h>

#include <cstdint>
#include <string>

namespace cohort::shm {

struct Description {
  OpType op = OpType::unknown;
  DType dtype = DType::u8;
  ReduceOp::Kind reduce = ReduceOp::Kind::sum;
  int root = 0;
  /// Of the whole operation where all ranks know it; 0 where they may differ. From 64 GiB on it is not told apart.
  std::uint64_t bytes = 0;

  std::uint64_t pack() const;
  static Description unpack(std::uint64_t word);
};

/// Set beside a description: this rank's memory lies where the others reach it.
inline constexpr std::uint64_t reachable_memory = std::uint64_t{1} << 13U;

/// Whether two ranks do the same; where their memory lies may differ.
constexpr bool matches(std::uint64_t a, std::uint64_t b) {
  return ((a ^ b) & ~reachable_memory) == 0;
}

/// "all_reduce(sum, f32, 4096 bytes)", "broadcast(16 bytes, root 2)", "barrier()"
std::string to_string(const Description& description);

}  // namespace cohort::shm
