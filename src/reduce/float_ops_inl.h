// SPDX-License-Identifier: BSD-3-Clause
//
// The reductions of vectors of float or double, compiled once per instruction set.
#if defined(COHORT_REDUCE_FLOAT_OPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_REDUCE_FLOAT_OPS_INL_H
#undef COHORT_REDUCE_FLOAT_OPS_INL_H
#else
#define COHORT_REDUCE_FLOAT_OPS_INL_H
#endif

#include "reduce/loop_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::reduce::HWY_NAMESPACE {

template <class T>
class Average : public Sum {
 public:
  explicit Average(double divisor) : Sum(divisor), divisor_(static_cast<T>(divisor)) {}
  template <class V>
  HWY_INLINE V last(V sum) const {
    return hn::Div(sum, hn::Set(hn::DFromV<V>(), divisor_));
  }

 private:
  T divisor_;
};

template <class T>
struct PremulSum : PlainOp {
  using PlainOp::PlainOp;
  HWY_INLINE T factor(const double* factors, std::size_t source) const { return static_cast<T>(factors[source]); }
  template <class V>
  HWY_INLINE V first(V value, T factor) const {
    return hn::Mul(value, hn::Set(hn::DFromV<V>(), factor));
  }
  template <class V>
  HWY_INLINE V next(V sum, V value, T factor) const {
    return hn::Add(sum, first(value, factor));
  }
};

struct Product : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V product, V value, NoFactor) const {
    return hn::Mul(product, value);
  }
};

/// Keeps the first NaN, and the first of two equal values (0 and -0), because the minimum instructions of CPUs differ
/// in these cases. A comparison with NaN is false, so a new value that is not greater than or equal to the old one is
/// either smaller or NaN.
struct Minimum : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V least, V value, NoFactor) const {
    return hn::IfThenElse(hn::AndNot(hn::Ge(value, least), hn::Eq(least, least)), value, least);
  }
};

struct Maximum : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V greatest, V value, NoFactor) const {
    return hn::IfThenElse(hn::AndNot(hn::Le(value, greatest), hn::Eq(greatest, greatest)), value, greatest);
  }
};

}  // namespace cohort::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
