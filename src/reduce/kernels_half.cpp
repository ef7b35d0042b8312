// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels for f16 and bf16, which are widened to float, reduced as float, and rounded once to nearest even. Highway's
// own conversions do not: 1.0.3 truncates, always for bf16, and for f16 if the CPU has no instruction for it; then it
// also treats infinity and NaN as numbers, and 1.3 makes an infinity of a NaN.
#include "reduce/instruction_set.h"
#include "reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/kernels_half.cpp"
#include <hwy/foreach_target.h>

#include <bit>

#include "reduce/float_ops_inl.h"

// With arrays in place of vectors (EMU128), inlining long functions takes minutes to compile.
#undef COHORT_REDUCE_CONVERSION
#if HWY_TARGET == HWY_EMU128
#define COHORT_REDUCE_CONVERSION HWY_NOINLINE
#else
#define COHORT_REDUCE_CONVERSION HWY_INLINE
#endif

HWY_BEFORE_NAMESPACE();
namespace cohort::reduce::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<std::uint32_t>;
using FloatVec = hn::Vec<Floats>;
using WordVec = hn::Vec<Words>;

/// The floats from one vector of 16-bit numbers.
struct Pair {
  FloatVec a;
  FloatVec b;
};

/// Applies an op on floats to both vectors.
template <class Op>
struct OnPairs {
  explicit OnPairs(double divisor) : op(divisor) {}
  HWY_INLINE auto factor(const double* factors, std::size_t source) const { return op.factor(factors, source); }
  template <class Factor>
  HWY_INLINE Pair first(Pair value, Factor factor) const {
    return {op.first(value.a, factor), op.first(value.b, factor)};
  }
  template <class Factor>
  HWY_INLINE Pair next(Pair so_far, Pair value, Factor factor) const {
    return {op.next(so_far.a, value.a, factor), op.next(so_far.b, value.b, factor)};
  }
  HWY_INLINE Pair last(Pair value) const { return {op.last(value.a), op.last(value.b)}; }

  Op op;
};

/// Two neighbouring numbers share a 32-bit word, so shifting and masking words separates and joins them without moving
/// lanes.
struct BFloat16s : WholeVectors {
  static constexpr std::size_t element = 2;
  static_assert(std::endian::native == std::endian::little);

  static HWY_INLINE Pair decode(hn::Vec<Bytes> bytes) {
    const auto words = hn::BitCast(Words(), bytes);
    return {hn::BitCast(Floats(), hn::ShiftLeft<16>(words)), hn::BitCast(Floats(), hn::And(words, upper_half()))};
  }
  static HWY_INLINE hn::Vec<Bytes> encode(Pair value) {
    const auto words = hn::Or(hn::ShiftRight<16>(rounded(value.a)), hn::And(rounded(value.b), upper_half()));
    return hn::BitCast(Bytes(), words);
  }
  static HWY_INLINE Pair load(const std::uint8_t* from) { return decode(hn::LoadU(Bytes(), from)); }

 private:
  static HWY_INLINE WordVec upper_half() { return hn::Set(Words(), 0xFFFF0000U); }

  /// Rounds to nearest, ties to even, into the upper half of each word; the lower half is meaningless. A carry into the
  /// exponent gives the right result, up to infinity. A NaN is left unchanged, which is correct because it was either
  /// read from an upper half or produced by arithmetic, so its upper half is a NaN too.
  static COHORT_REDUCE_CONVERSION WordVec rounded(FloatVec value) {
    const Words d;
    const auto bits = hn::BitCast(d, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
    return hn::Add(bits, hn::IfThenZeroElse(is_nan, hn::Add(odd, hn::Set(d, 0x7FFF))));
  }
};

/// Loads and stores half vectors, which is cheaper than splitting and joining whole ones.
struct Float16s {
  using HalfBytes = hn::Half<Bytes>;
  struct Halves {
    hn::Vec<HalfBytes> a;
    hn::Vec<HalfBytes> b;
  };
  static constexpr std::size_t element = 2;

  static HWY_INLINE Pair decode(hn::Vec<Bytes> bytes) {
    return {widened(hn::LowerHalf(HalfBytes(), bytes)), widened(hn::UpperHalf(HalfBytes(), bytes))};
  }
  static HWY_INLINE Pair load(const std::uint8_t* from) {
    return {widened(hn::LoadU(HalfBytes(), from)), widened(hn::LoadU(HalfBytes(), from + half))};
  }
  static HWY_INLINE Halves encode(Pair value) { return {rounded(value.a), rounded(value.b)}; }
  static HWY_INLINE hn::Vec<Bytes> joined(Halves halves) { return hn::Combine(Bytes(), halves.b, halves.a); }
  static HWY_INLINE void store(Halves halves, std::uint8_t* to) {
    hn::StoreU(halves.a, HalfBytes(), to);
    hn::StoreU(halves.b, HalfBytes(), to + half);
  }

 private:
  static constexpr std::size_t half = hn::MaxLanes(HalfBytes());

  // Whether the instruction set converts f16. Of two targets of x86 the lesser number is the better one, and AVX2 is
  // the first with F16C; the baseline is EMU128 or, since Highway 1.0.4, SSE2.
#if HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
  using Shorts = hn::Rebind<std::uint16_t, Floats>;

  static COHORT_REDUCE_CONVERSION FloatVec widened(hn::Vec<HalfBytes> bytes) {
    const Words d;
    const auto bits = hn::PromoteTo(d, hn::BitCast(Shorts(), bytes));
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    // The biases of the exponents differ by 112. An exponent with all bits set (infinity and NaN) needs twice that.
    const auto rebias = hn::Set(d, 112U << 23);
    const auto is_finite = hn::Lt(magnitude, hn::Set(d, 0x7C00));
    const auto normal = hn::Add(hn::Add(hn::ShiftLeft<13>(magnitude), rebias), hn::IfThenZeroElse(is_finite, rebias));
    const auto count = hn::ConvertTo(Floats(), hn::BitCast(hn::RebindToSigned<Words>(), magnitude));
    const auto subnormal = hn::BitCast(d, hn::Mul(count, hn::Set(Floats(), 0x1p-24F)));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(d, 0x0400));
    return hn::BitCast(Floats(), hn::Or(sign, hn::IfThenElse(is_subnormal, subnormal, normal)));
  }

  static COHORT_REDUCE_CONVERSION hn::Vec<HalfBytes> rounded(FloatVec value) {
    const Words d;
    const auto bits = hn::BitCast(d, value);
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
    const auto nearest = hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0xFFF)));
    const auto normal = hn::Min(hn::ShiftRight<13>(hn::Sub(nearest, hn::Set(d, 112U << 23))), hn::Set(d, 0x7C00));
    // The spacing of floats from 0.5 on is that of f16's subnormals, so adding 0.5 rounds to them.
    const auto shifted = hn::Add(hn::BitCast(Floats(), magnitude), hn::Set(Floats(), 0.5F));
    const auto subnormal = hn::Sub(hn::BitCast(d, shifted), hn::Set(d, 126U << 23));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(d, 113U << 23));
    const auto number = hn::IfThenElse(is_subnormal, subnormal, normal);
    const auto nan = hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x3FF)), hn::Set(d, 0x7E00));
    const auto is_nan = hn::Gt(magnitude, hn::Set(d, 255U << 23));
    const auto result = hn::Or(sign, hn::IfThenElse(is_nan, nan, number));
    return hn::BitCast(HalfBytes(), hn::DemoteTo(Shorts(), hn::BitCast(hn::RebindToSigned<Words>(), result)));
  }
#else
  using Native = hn::Rebind<hwy::float16_t, Floats>;

  static COHORT_REDUCE_CONVERSION FloatVec widened(hn::Vec<HalfBytes> bytes) {
    return hn::PromoteTo(Floats(), hn::BitCast(Native(), bytes));
  }
  static COHORT_REDUCE_CONVERSION hn::Vec<HalfBytes> rounded(FloatVec value) {
    return hn::BitCast(HalfBytes(), hn::DemoteTo(Native(), value));
  }
#endif
};

template <class Format, Stores stores>
Kernel find_sum_of(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return kernel<Format, OnPairs<Sum>, stores>;
    case ReduceOp::Kind::avg:
      return kernel<Format, OnPairs<Average<float>>, stores>;
    default:
      return nullptr;
  }
}

template <class Format>
Kernel find_any_of(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::premul_sum:
      return kernel<Format, OnPairs<PremulSum<float>>>;
    case ReduceOp::Kind::product:
      return kernel<Format, OnPairs<Product>>;
    case ReduceOp::Kind::min:
      return kernel<Format, OnPairs<Minimum>>;
    case ReduceOp::Kind::max:
      return kernel<Format, OnPairs<Maximum>>;
    default:
      return find_sum_of<Format, Stores::ordinary>(kind);
  }
}

Kernel find_half(DType dtype, ReduceOp::Kind kind, Stores stores) {
  const bool streaming = stores == Stores::streaming;
  if (dtype == DType::f16)
    return streaming ? find_sum_of<Float16s, Stores::streaming>(kind) : find_any_of<Float16s>(kind);
  return streaming ? find_sum_of<BFloat16s, Stores::streaming>(kind) : find_any_of<BFloat16s>(kind);
}

}  // namespace cohort::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::reduce {

Kernel find_half_kernel(DType dtype, ReduceOp::Kind kind, Stores stores) {
  return COHORT_CHOOSE_VERSION(find_half)(dtype, kind, stores);
}

}  // namespace cohort::reduce
#endif
