// SPDX-License-Identifier: BSD-3-Clause
//
// Vector kernels that reduce the memory of several ranks. The instruction set is chosen at run time.
//
// Every element is reduced separately, in the order of the sources: acc = s0[i], acc = op(acc, s1[i]), ... Therefore
// the bits of a result do not depend on how the elements are divided into calls, on the vector width or on the
// instruction set. Only the sign and payload of a NaN that arithmetic produced or propagated may differ between CPUs.
#pragma once

#include <cohort/dtype.h>
#include <cohort/reduce_op.h>

#include <cstddef>

namespace cohort::reduce {

/// The operands, in the order in which they are combined; at least one.
struct Sources {
  const void* const* data{};
  const double* factors{};  ///< one per source, read by premul_sum only
  std::size_t count{};
};

/// Where the result is stored. An output may be one of the sources (the same address); otherwise nothing may overlap.
struct Outputs {
  void* const* data{};
  std::size_t count{};
};

/// avg divides by `divisor`; all other reductions ignore it. Nothing needs to be aligned.
using Kernel = void (*)(const Sources&, const Outputs&, std::size_t elements, double divisor);

/// A table look-up, which is done once per operation. Not null if is_reducible().
Kernel find_kernel(DType dtype, ReduceOp::Kind kind);

/// The same for up to `short_bytes` of the usual types, one element after another; null for other reductions. Starting
/// a vector kernel takes longer than so little arithmetic: masks, and loads that wait for stores of another width.
inline constexpr std::size_t short_bytes = 32;
Kernel find_short_kernel(DType dtype, ReduceOp::Kind kind);

/// The kernel for so many bytes.
inline Kernel find_kernel_for(DType dtype, ReduceOp::Kind kind, std::size_t bytes) {
  const auto found = bytes <= short_bytes ? find_short_kernel(dtype, kind) : nullptr;
  return found != nullptr ? found : find_kernel(dtype, kind);
}

/// The same as find_kernel() with stores that bypass the caches, for outputs that are too large to be read from the
/// caches later. The stores are visible to every thread that synchronises with this one after the call. These kernels
/// exist for sums and averages of the usual types of gradients and counters; otherwise this is the same as
/// find_kernel().
Kernel find_streaming_kernel(DType dtype, ReduceOp::Kind kind);

}  // namespace cohort::reduce
