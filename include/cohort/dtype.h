// SPDX-License-Identifier: BSD-3-Clause
//
// The element types that collectives move and reduce.
//
//   static_assert(cohort::size_of(cohort::DType::bf16) == 2);
//   static_assert(cohort::dtype_of<float> == cohort::DType::f32);
//   static_assert(cohort::dtype_of<std::uint32_t> == cohort::DType::u32);
//
// Objects of any other trivially copyable type (a struct of numbers) are moved as bytes of the dtype `raw`, which has
// no arithmetic: only a reduction of your own (reduction.h) combines them.
#pragma once

#include <cohort/export.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace cohort {

enum class DType : std::uint8_t {
  f16,
  bf16,
  f32,
  f64,
  i8,
  u8,
  i16,
  i32,
  i64,
  boolean,
  complex64,
  complex128,
  u16,
  u32,
  u64,
  raw,  ///< bytes of trivially copyable objects, counted in bytes
};

/// The bits of an IEEE binary16 number. It has no arithmetic, because C++20 has no such type.
struct Float16 {
  std::uint16_t bits;
};
/// The bits of a bfloat16 number: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits;
};

constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::raw:
      return 1;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
    case DType::u16:
      return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::f64:
    case DType::i64:
    case DType::u64:
    case DType::complex64:
      return 8;
    case DType::complex128:
      return 16;
  }
  return 0;
}

/// "f32", "bool", "complex64", ...
COHORT_API std::string_view to_string(DType dtype);
/// Accepts the names above, PyTorch's ("float32", "half", "int64", ...) and those of C ("float", "double", "int").
/// Throws ValueError otherwise.
COHORT_API DType parse_dtype(std::string_view name);

namespace detail {

template <class T>
constexpr DType integer_dtype() {
  if constexpr (sizeof(T) == 1) return std::is_signed_v<T> ? DType::i8 : DType::u8;
  if constexpr (sizeof(T) == 2) return std::is_signed_v<T> ? DType::i16 : DType::u16;
  if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? DType::i32 : DType::u32;
  return std::is_signed_v<T> ? DType::i64 : DType::u64;
}

template <class T>
inline constexpr bool is_integer_element = std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8;

template <class T, class = void>
struct DTypeOf {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::f16> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::boolean> {};
template <>
struct DTypeOf<std::byte> : std::integral_constant<DType, DType::u8> {};
template <>
struct DTypeOf<std::complex<float>> : std::integral_constant<DType, DType::complex64> {};
template <>
struct DTypeOf<std::complex<double>> : std::integral_constant<DType, DType::complex128> {};
template <class T>
struct DTypeOf<T, std::enable_if_t<is_integer_element<T>>> : std::integral_constant<DType, integer_dtype<T>()> {};

}  // namespace detail

/// Types that have a dtype.
template <class T>
concept Element = requires { detail::DTypeOf<std::remove_cv_t<T>>::value; };

template <Element T>
inline constexpr DType dtype_of = detail::DTypeOf<std::remove_cv_t<T>>::value;

}  // namespace cohort
