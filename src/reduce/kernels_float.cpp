// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels for float and double, and for complex numbers, which are pairs of them.
#include "reduce/instruction_set.h"
#include "reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/kernels_float.cpp"
#include <hwy/foreach_target.h>

#include "reduce/float_ops_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::reduce::HWY_NAMESPACE {

/// `reals` is the number of T in an element: 2 for complex numbers.
template <class T, std::size_t reals, Stores stores>
Kernel find_sum_of(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return kernel<Plain<T>, Sum, stores, reals * sizeof(T)>;
    case ReduceOp::Kind::avg:
      return kernel<Plain<T>, Average<T>, stores, reals * sizeof(T)>;
    case ReduceOp::Kind::premul_sum:
      if constexpr (stores == Stores::ordinary) return kernel<Plain<T>, PremulSum<T>, stores, reals * sizeof(T)>;
      return nullptr;
    default:
      return nullptr;
  }
}

template <class T>
Kernel find_real(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::product:
      return kernel<Plain<T>, Product>;
    case ReduceOp::Kind::min:
      return kernel<Plain<T>, Minimum>;
    case ReduceOp::Kind::max:
      return kernel<Plain<T>, Maximum>;
    default:
      return find_sum_of<T, 1, Stores::ordinary>(kind);
  }
}

Kernel find_float(DType dtype, ReduceOp::Kind kind, Stores stores) {
  const bool streaming = stores == Stores::streaming;
  switch (dtype) {
    case DType::f32:
      return streaming ? find_sum_of<float, 1, Stores::streaming>(kind) : find_real<float>(kind);
    case DType::f64:
      return streaming ? find_sum_of<double, 1, Stores::streaming>(kind) : find_real<double>(kind);
    case DType::complex64:
      return streaming ? find_sum_of<float, 2, Stores::streaming>(kind) : find_sum_of<float, 2, Stores::ordinary>(kind);
    case DType::complex128:
      return streaming ? find_sum_of<double, 2, Stores::streaming>(kind)
                       : find_sum_of<double, 2, Stores::ordinary>(kind);
    default:
      return nullptr;
  }
}

}  // namespace cohort::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::reduce {

Kernel find_float_kernel(DType dtype, ReduceOp::Kind kind, Stores stores) {
  return COHORT_CHOOSE_VERSION(find_float)(dtype, kind, stores);
}

}  // namespace cohort::reduce
#endif
