// SPDX-License-Identifier: BSD-3-Clause
//
// Straightforward reductions: one element at a time, in the order of the sources.
#pragma once

#include <cohort/dtype.h>
#include <cohort/reduce_op.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace cohort::test {

/// A 16-bit binary format, and the value of its bits.
inline float from_half(std::uint16_t bits, int mantissa_bits) {
  const int ones = (1 << (15 - mantissa_bits)) - 1;
  const int exponent = (bits >> mantissa_bits) & ones;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int min_exponent = 1 - ones / 2 - mantissa_bits;
  float value = 0;
  if (exponent == ones) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), min_exponent);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), min_exponent + exponent - 1);
  }
  return std::copysign(value, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
}

/// Rounds to nearest, ties to even: nearbyint() of the value in units of its last place.
inline std::uint16_t to_half(float value, int mantissa_bits) {
  const int ones = (1 << (15 - mantissa_bits)) - 1;
  const int infinity = ones << mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  const int least = 1 - ones / 2;
  const int exponent = std::max(std::ilogb(value), least);
  const double units = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(value)), mantissa_bits - exponent));
  // The leading bit of a normal number adds one to the exponent; a subnormal number has no such bit.
  const double bits = units + std::ldexp(exponent - least, mantissa_bits);
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::min(bits, static_cast<double>(infinity))));
}

/// The type that is computed with, and the conversions to and from it.
template <class T>
struct Arithmetic {
  using Number = T;
  static Number widen(T value) { return value; }
  static T narrow(Number value) { return value; }
};
template <>
struct Arithmetic<Float16> {
  using Number = float;
  static float widen(Float16 value) { return from_half(value.bits, 10); }
  static Float16 narrow(float value) { return {to_half(value, 10)}; }
};
template <>
struct Arithmetic<BFloat16> {
  using Number = float;
  static float widen(BFloat16 value) { return from_half(value.bits, 7); }
  static BFloat16 narrow(float value) { return {to_half(value, 7)}; }
};
template <>
struct Arithmetic<bool> {
  using Number = bool;
  static bool widen(std::uint8_t byte) { return byte != 0; }
  static std::uint8_t narrow(bool value) { return value ? 1 : 0; }
};

template <class N>
N combine(ReduceOp::Kind kind, N a, N b) {
  using Kind = ReduceOp::Kind;
  if constexpr (std::is_same_v<N, bool>) {
    if (kind == Kind::sum || kind == Kind::max || kind == Kind::bor) return a || b;
    if (kind == Kind::bxor) return a != b;
    return a && b;
  } else if constexpr (std::is_integral_v<N>) {
    // Multiplied as 64-bit unsigned numbers, which wrap around; an int would overflow.
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (kind == Kind::sum) return static_cast<N>(x + y);
    if (kind == Kind::product) return static_cast<N>(x * y);
    if (kind == Kind::min) return b < a ? b : a;
    if (kind == Kind::max) return b > a ? b : a;
    if (kind == Kind::band) return static_cast<N>(x & y);
    if (kind == Kind::bor) return static_cast<N>(x | y);
    return static_cast<N>(x ^ y);
  } else {
    if (kind == Kind::product) return a * b;
    if (kind == Kind::min || kind == Kind::max) {
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
      if (kind == Kind::min) return b < a ? b : a;
      return b > a ? b : a;
    }
    return a + b;
  }
}

/// Each source holds `reals` numbers of type T (twice the elements for complex numbers), at any address.
template <class T>
std::vector<std::uint8_t> reference_of(ReduceOp::Kind kind, const std::vector<const std::uint8_t*>& sources,
                                       const std::vector<double>& factors, double divisor, std::size_t reals) {
  using A = Arithmetic<T>;
  using Number = typename A::Number;
  using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
  std::vector<std::uint8_t> result(reals * sizeof(Stored));
  for (std::size_t i = 0; i < reals; ++i) {
    Number so_far{};
    for (std::size_t s = 0; s < sources.size(); ++s) {
      Stored stored;
      std::memcpy(&stored, sources[s] + i * sizeof(Stored), sizeof(Stored));
      Number value = A::widen(stored);
      if constexpr (std::is_floating_point_v<Number>) {
        if (kind == ReduceOp::Kind::premul_sum) value = value * static_cast<Number>(factors[s]);
      }
      so_far = s == 0 ? value : combine<Number>(kind, so_far, value);
    }
    if constexpr (std::is_floating_point_v<Number>) {
      if (kind == ReduceOp::Kind::avg) so_far = so_far / static_cast<Number>(divisor);
    }
    const Stored stored = A::narrow(so_far);
    std::memcpy(result.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
  return result;
}

inline std::vector<std::uint8_t> reference(DType dtype, ReduceOp::Kind kind,
                                           const std::vector<const std::uint8_t*>& sources,
                                           const std::vector<double>& factors, double divisor, std::size_t elements) {
  const auto of = [&]<class T>(T /*type*/, std::size_t reals) {
    return reference_of<T>(kind, sources, factors, divisor, reals);
  };
  switch (dtype) {
    case DType::f16:
      return of(Float16{}, elements);
    case DType::bf16:
      return of(BFloat16{}, elements);
    case DType::f32:
      return of(float{}, elements);
    case DType::f64:
      return of(double{}, elements);
    case DType::i8:
      return of(std::int8_t{}, elements);
    case DType::u8:
      return of(std::uint8_t{}, elements);
    case DType::i16:
      return of(std::int16_t{}, elements);
    case DType::i32:
      return of(std::int32_t{}, elements);
    case DType::i64:
      return of(std::int64_t{}, elements);
    case DType::u16:
      return of(std::uint16_t{}, elements);
    case DType::u32:
      return of(std::uint32_t{}, elements);
    case DType::u64:
      return of(std::uint64_t{}, elements);
    case DType::raw:
      break;
    case DType::boolean:
      return of(bool{}, elements);
    case DType::complex64:
      return of(float{}, 2 * elements);
    case DType::complex128:
      return of(double{}, 2 * elements);
  }
  return {};
}

/// Replaces every NaN by the same one, because their payloads are not promised.
inline std::vector<std::uint8_t> with_one_nan(DType dtype, std::vector<std::uint8_t> bytes) {
  const auto unify = [&]<class T>(T nan, auto is_nan) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      if (is_nan(value)) std::memcpy(bytes.data() + at, &nan, sizeof(T));
    }
  };
  const auto is_nan = [](auto value) { return std::isnan(value); };
  switch (dtype) {
    case DType::f16:
      unify(std::uint16_t{0x7FFF}, [](std::uint16_t bits) { return (bits & 0x7FFF) > 0x7C00; });
      break;
    case DType::bf16:
      unify(std::uint16_t{0x7FFF}, [](std::uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; });
      break;
    case DType::f32:
    case DType::complex64:
      unify(std::numeric_limits<float>::quiet_NaN(), is_nan);
      break;
    case DType::f64:
    case DType::complex128:
      unify(std::numeric_limits<double>::quiet_NaN(), is_nan);
      break;
    default:
      break;
  }
  return bytes;
}

}  // namespace cohort::test
