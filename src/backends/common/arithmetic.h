// SPDX-License-Identifier: BSD-3-Clause
//
// Reductions for engines that can only combine two buffers: what is done to a rank's input before, what is done to the
// result after, and the combination itself, with the library's own kernels, so that every type and operation means the
// same on every backend.
#pragma once

#include <cohort/operation.h>

#include <array>

#include "reduce/kernels.h"

namespace cohort {

class Arithmetic {
 public:
  explicit Arithmetic(const Operation& op)
      : dtype_(op.dtype),
        op_(op.reduce),
        combine_(reduce::find_kernel(
            dtype_, op_.kind() == ReduceOp::Kind::avg || op_.kind() == ReduceOp::Kind::premul_sum ? ReduceOp::Kind::sum
                                                                                                  : op_.kind())) {}

  /// Whether the input must be changed before it is combined (by the factor of premul_sum).
  bool has_before() const { return op_.kind() == ReduceOp::Kind::premul_sum; }
  /// Whether the result must be changed (by the division of avg).
  bool has_after() const { return op_.kind() == ReduceOp::Kind::avg; }

  void before(const void* in, void* out, std::size_t count) const { alone(in, out, count, 1); }
  void after(void* data, std::size_t count, int ranks) const { alone(data, data, count, ranks); }
  /// out = a op b; `out` may be one of them.
  void combine(void* out, const void* a, const void* b, std::size_t count) const {
    const std::array<const void*, 2> sources{a, b};
    constexpr std::array<double, 2> ones{1, 1};
    combine_({.data = sources.data(), .factors = ones.data(), .count = 2}, {.data = &out, .count = 1}, count, 1);
  }
  /// The whole reduction, for a group of one rank.
  void alone(const void* in, void* out, std::size_t count, int ranks) const {
    const double factor = op_.factor();
    reduce::find_kernel(dtype_, op_.kind())({.data = &in, .factors = &factor, .count = 1}, {.data = &out, .count = 1},
                                            count, ranks);
  }

 private:
  DType dtype_;
  ReduceOp op_;
  reduce::Kernel combine_;
};

}  // namespace cohort
