// SPDX-License-Identifier: BSD-3-Clause
//
// Vector kernels that combine the memory of several ranks, chosen for the CPU at run time.
//
// Every element is combined by itself and in the order of the sources: acc = s0[i], acc = op(acc, s1[i]), ... So the
// bits of a result do not depend on how the elements were cut into calls, on vector width or on instruction set. Only
// the sign and payload of a NaN that arithmetic made or passed on may differ: hardware does not agree on them.
#pragma once

#include <cohort/dtype.h>
#include <cohort/reduce_op.h>

#include <cstddef>

namespace cohort::reduce {

/// What is combined, in this order; at least one.
struct Sources {
  const void* const* data{};
  const double* factors{};  ///< one per source, read by premul_sum only
  std::size_t count{};
};

/// Where the result goes. An output may be one of the sources (the same address); otherwise nothing overlaps.
struct Outputs {
  void* const* data{};
  std::size_t count{};
};

/// avg divides by `divisor`, all others ignore it. Nothing needs to be aligned.
using Kernel = void (*)(const Sources&, const Outputs&, std::size_t elements, double divisor);

/// A table look-up, once per operation. Not null where is_reducible().
Kernel find_kernel(DType dtype, ReduceOp::Kind kind);

/// The same with stores that bypass the caches, for outputs too large to be read from them later; they are visible to
/// whoever synchronises with this thread after the call. Exists for the sums and averages of the types that gradients
/// and counters come in; for others this is find_kernel().
Kernel find_streaming_kernel(DType dtype, ReduceOp::Kind kind);

}  // namespace cohort::reduce
